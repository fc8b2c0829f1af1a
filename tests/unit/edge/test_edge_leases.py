"""Leases: epochs fence, silence orphans, a restart blames nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dsec.edge.leases import SCHEMA, Leases
from dsec.journal import Journal
from dsec.testing.fake_clock import FakeClock
from libdsec.protocol.errors import ConflictError, InvalidArgumentError, LeaseLostError, NotFoundError
from libdsec.protocol.jobs import LeaseHolder, LeaseRequest


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[Journal]:
    journal = Journal(str(directory / "edge.db"), asyncio.get_running_loop(), (SCHEMA,))
    try:
        yield journal
    finally:
        await journal.close()


def rollout(**changes: object) -> LeaseRequest:
    return LeaseRequest("rollout", "r-1", **changes)  # type: ignore[arg-type]


async def test_taking_it_again_fences_the_earlier_holder(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        leases = Leases(journal, FakeClock())
        assert leases.take(rollout(job="j")).epoch == 1
        assert leases.take(rollout()).epoch == 2
        with pytest.raises(LeaseLostError) as caught:
            leases.renew(LeaseHolder("rollout", "r-1", 1))
        assert (caught.value.details["epoch"], caught.value.details["held"]) == (1, 2)
        with pytest.raises(LeaseLostError):
            leases.fence("rollout", "r-1", 0)
        leases.fence("rollout", "r-1", 2)
        with pytest.raises(LeaseLostError):
            leases.fence("rollout", "r-1", 3)  # of a lease that was forgotten since
        leases.fence("rollout", "nobody-took-it", 0)
        assert leases.job_of("r-1") == "j"
        with pytest.raises(ConflictError):
            leases.take(rollout(job="another"))


async def test_silence_pauses_then_stops_and_each_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        clock = FakeClock()
        leases = Leases(journal, clock)
        leases.take(rollout(lease_s=10, pause_after_s=5, stop_after_s=20))
        seen = []
        for _ in range(40):
            clock.advance(1)
            seen += [(round(clock.monotonic() - 1000), found.action) for found in leases.due()]
        assert seen == [(15, "pause"), (30, "stop")]


async def test_what_an_edge_died_in_before_all_orphans_were_stopped_is_due_again(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path) as journal:
        leases = Leases(journal, clock)
        leases.take(rollout(lease_s=10, stop_after_s=20))
        clock.advance(31)
        assert [found.action for found in leases.due()] == ["stop"]
    async with opened(tmp_path) as journal:
        leases = Leases(journal, clock)
        leases.load()
        assert leases.due() == []
        clock.advance(31)
        (found,) = leases.due()
        leases.acted(found.lease)
    async with opened(tmp_path) as journal:
        leases = Leases(journal, clock)
        leases.load()
        clock.advance(31)
        assert leases.due() == []


async def test_a_renewal_ends_the_silence(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        clock = FakeClock()
        leases = Leases(journal, clock)
        epoch = leases.take(rollout(lease_s=10, pause_after_s=0)).epoch
        for _ in range(5):
            clock.advance(9)
            leases.renew(LeaseHolder("rollout", "r-1", epoch))
            assert leases.due() == []
        clock.advance(11)
        assert [found.action for found in leases.due()] == ["pause"]
        leases.renew(LeaseHolder("rollout", "r-1", epoch))
        clock.advance(11)
        assert [found.action for found in leases.due()] == ["pause"]


async def test_a_released_lease_orphans_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        clock = FakeClock()
        leases = Leases(journal, clock)
        epoch = leases.take(rollout(lease_s=1, pause_after_s=0, stop_after_s=0)).epoch
        leases.release(LeaseHolder("rollout", "r-1", epoch))
        clock.advance(100)
        assert leases.due() == []


async def test_a_successor_knows_the_epochs_and_blames_nobody_for_its_absence(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        clock = FakeClock()
        first = Leases(journal, clock)
        first.take(rollout(lease_s=10, pause_after_s=0))
        clock.advance(1000)
        second = Leases(journal, clock)
        second.load()
        assert second.due() == []
        assert second.take(rollout()).epoch == 2
        clock.advance(11)
        second.take(rollout(lease_s=10, pause_after_s=0))
        clock.advance(11)
        assert [found.action for found in second.due()] == ["pause"]


async def test_leases_that_nobody_holds_of_nothing_that_lives_are_forgotten_and_their_epochs_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsec.edge.leases.MAX_LEASES", 4)
    async with opened(tmp_path) as journal:
        clock = FakeClock()
        leases = Leases(journal, clock, lambda: {("rollout", "lives")})

        def take(name: str) -> int:
            return leases.take(LeaseRequest("rollout", name, lease_s=10)).epoch

        early = [take(name) for name in ("lives", "dead", "held", "released")]
        with pytest.raises(ConflictError):
            take("one too many")
        leases.release(LeaseHolder("rollout", "released", early[3]))
        take("instead of the released one")
        clock.advance(11)
        leases.renew(LeaseHolder("rollout", "held", early[2]))
        take("instead of the dead one")
        leases.fence("rollout", "lives", early[0])
        leases.fence("rollout", "held", early[2])
        clock.advance(5)
        again = take("dead")
        assert again > early[1]
        with pytest.raises(LeaseLostError):
            leases.fence("rollout", "dead", early[1])
        leases = Leases(journal, clock, lambda: {("rollout", "lives")})
        leases.load()
        clock.advance(11)
        assert take("another") > again


async def test_rollouts_and_jobs_are_listed_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as journal:
        clock = FakeClock()
        leases = Leases(journal, clock)
        for name, job in (("b", "y"), ("c", None), ("a", "y"), ("d", "x")):
            leases.take(LeaseRequest("rollout", name, job=job, lease_s=10))
        leases.take(LeaseRequest("job", "x"))
        for known in (leases, Leases(journal, clock)):
            if known is not leases:
                known.load()
            assert [lease.name for lease in known.rollouts()] == ["a", "b", "c", "d"]
            assert [lease.name for lease in known.rollouts("a", "y")] == ["b"]
            assert (list(known.jobs()), list(known.jobs("x"))) == (["x", "y"], ["y"])
            assert (known.count("y"), known.count("z")) == (2, 0)
        monkeypatch.setattr("dsec.edge.leases.MAX_LEASES", 5)
        clock.advance(11)
        leases.take(LeaseRequest("rollout", "e"))
        assert [lease.name for lease in leases.rollouts()] == ["a", "c", "d", "e"]
        assert leases.count("y") == 1


async def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        leases = Leases(journal, FakeClock())
        for changes in (
            {"lease_s": 0.0},
            {"lease_s": float("nan")},
            {"pause_after_s": -1.0},
            {"stop_after_s": float("inf")},
        ):
            with pytest.raises(InvalidArgumentError):
                leases.take(rollout(**changes))
        with pytest.raises(NotFoundError):
            leases.renew(LeaseHolder("job", "nobody", 1))
