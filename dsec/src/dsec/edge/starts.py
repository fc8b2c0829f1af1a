"""A number for each start of this edge: part of what names a call, so that no two edges give the same name."""

from __future__ import annotations

from dsec.journal import Journal, Schema

SCHEMA = Schema("starts", ((("CREATE TABLE starts (number INTEGER PRIMARY KEY)"),),))


def count_start(journal: Journal, now: float) -> int:
    """The number of this start, above all earlier ones: also where those could not be written down (on a full disk), or
    are forgotten (a copy of the journal was put back). `now`: seconds of the wall clock, which fit into 32 bits."""
    ((last,),) = journal.query("SELECT coalesce(max(number), 0) FROM starts")
    number = max(int(last) + 1, int(now))
    journal.submit("DELETE FROM starts", ())
    journal.submit("INSERT INTO starts VALUES (?)", (number,))
    journal.flush_now()
    return number
