"""How often this edge has been started: part of what names a call, so that no two edges give the same name."""

from __future__ import annotations

from dsec.journal import Journal, Schema

SCHEMA = Schema("starts", ((("CREATE TABLE starts (number INTEGER PRIMARY KEY)"),),))


def count_start(journal: Journal) -> int:
    """The number of this start, from 1; written down when this returns."""
    ((last,),) = journal.query("SELECT coalesce(max(number), 0) FROM starts")
    journal.submit("DELETE FROM starts", ())
    journal.submit("INSERT INTO starts VALUES (?)", (last + 1,))
    journal.flush_now()
    return int(last) + 1
