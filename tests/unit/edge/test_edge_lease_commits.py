"""A lease is given when it is written down, and not before."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dsec import commandlog
from dsec.bus import Request
from dsec.commandlog import CommandLog
from dsec.edge import leases
from dsec.edge.leases import Leases
from dsec.edge.verbs import leases as verbs
from dsec.journal import Journal
from dsec.testing.fake_clock import FakeClock
from libdsec.protocol.errors import LeaseLostError
from libdsec.protocol.jobs import LeaseHolder, LeaseRequest


class Told:
    def __init__(self) -> None:
        self.answers: list[str] = []

    def result(self, payload: bytes) -> None:
        self.answers.append("result")

    def error(self, payload: bytes) -> None:
        self.answers.append(msgspec.msgpack.decode(payload)["code"])


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("kind", ["rollout", "job"])
async def test_a_lease_that_cannot_be_written_is_not_given(tmp_path: Path, kind: Any, alone: bool) -> None:
    """The scope is in the file and not in memory. `alone`: what else is in its commit is written."""
    clock, loop = FakeClock(), asyncio.get_running_loop()
    journal = Journal(f"{tmp_path}/edge.db", loop, (commandlog.SCHEMA, leases.SCHEMA))
    CommandLog(journal, f"{tmp_path}/logs", clock).open_scope("r", "rollout")
    journal.flush_now()
    log = CommandLog(journal, f"{tmp_path}/logs", clock)
    journal.flush_now()
    edge: Any = SimpleNamespace(
        log=log,
        leases=Leases(journal, clock),
        require_taking=lambda method: None,
    )
    apply = journal._apply

    def full(units: Any) -> None:
        if any("leases" in sql for unit in units for sql, _ in unit.statements):
            error = sqlite3.OperationalError("refused")
            error.sqlite_errorcode = sqlite3.SQLITE_CONSTRAINT if alone else sqlite3.SQLITE_FULL
            raise error
        apply(units)

    journal._apply = full  # type: ignore[method-assign]
    told: Any = Told()
    asked = msgspec.Raw(msgspec.msgpack.encode(LeaseRequest(kind, "r")))
    verbs.take(edge, Request("lease.take", asked, "root", None), told)
    journal.flush_now()
    assert told.answers == ["internal" if alone else "capacity"]
    journal._apply = apply  # type: ignore[method-assign]
    await journal.close()


async def test_whoever_holds_a_lease_keeps_it_when_it_cannot_be_given_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(f"{tmp_path}/edge.db", asyncio.get_running_loop(), (leases.SCHEMA,))
    held = Leases(journal, FakeClock())
    held.take(LeaseRequest("rollout", "r", lease_s=10, pause_after_s=3))
    journal.flush_now()

    def full(units: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(journal, "_apply", full)
    codes: list[str] = []
    held.take(LeaseRequest("rollout", "r", lease_s=99), failed=lambda error: codes.append(error.code))
    with pytest.raises(LeaseLostError):
        held.fence("rollout", "r", 1)
    journal.flush_now()
    held.fence("rollout", "r", 1)
    lease = held.renew(LeaseHolder("rollout", "r", 1))
    assert (len(codes), lease.lease_s, lease.pause_after_s) == (1, 10, 3)
    monkeypatch.undo()
    assert held.take(LeaseRequest("rollout", "r")).epoch == 3
    await journal.close()
