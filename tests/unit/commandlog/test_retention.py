"""What is let go of, and what is not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from steps_said import SANDBOX, Open, end

from dsec.commandlog import Begun, Bounds
from dsec.commandlog import log as log_module
from dsec.commandlog import retention as retention_module

DAY = 24 * 3600.0


def blobs(home: Path) -> int:
    return len(list((home / "logs").iterdir()))


async def test_a_log_goes_when_its_scope_has_ended_long_ago(open_log: Open, tmp_path: Path) -> None:
    async with open_log() as book:
        for scope in ("ended", "lives"):
            for n in range(1, 251):
                await book.run(n, scope=scope)
            await book.run(251, scope=scope, output=bytes(50_000))
        book.log.end_scope("ended")
        book.log.end_scope("nobody")
        book.clock.advance(6.9 * DAY)
        assert await book.log.prune(book.clock.now()) == 0
        assert book.log.count("ended") == 251
        book.clock.advance(0.2 * DAY)
        assert await book.log.prune(book.clock.now()) == 1
        assert book.log.scopes(ended=True) == [("lives", "rollout")]
        assert book.log.journal.query("SELECT count(*) FROM log_steps") == [(251,)]
        assert blobs(tmp_path) == 1
        assert book.log.count("ended") == 0
        assert isinstance(book.say(1, scope="ended"), Begun)
        assert book.answer(251, scope="lives").stdout_size == 50_000


async def test_a_log_in_which_steps_still_begin_is_kept_from_the_last_one(open_log: Open) -> None:
    async with open_log() as book:
        await book.run(1)
        book.log.end_scope(SANDBOX)
        book.clock.advance(6 * DAY)
        await book.run(2)
        book.clock.advance(6 * DAY)
        assert await book.log.prune(book.clock.now()) == 0
        book.clock.advance(2 * DAY)
        assert await book.log.prune(book.clock.now()) == 1


async def test_a_scope_that_is_opened_again_goes_on(open_log: Open) -> None:
    async with open_log() as book:
        await book.run(1, scope="rollout")
        book.log.end_scope("rollout")
        assert book.log.scopes() == []
        info = book.log.open_scope("rollout", "rollout")
        assert (info.steps, info.ended_at) == (1, None)
        assert book.log.open_scope("fresh", "rollout").steps == 0
        book.clock.advance(30 * DAY)
        assert await book.log.prune(book.clock.now()) == 0
    async with open_log() as book:
        assert book.log.scopes() == [("fresh", "rollout"), ("rollout", "rollout")]


async def test_what_runs_or_is_followed_is_not_deleted(open_log: Open) -> None:
    async with open_log() as book:
        entry = await book.begin(1, scope="runs")
        await book.run(1, scope="followed")
        unsubscribe = book.log.subscribe("followed", lambda _: None)
        for scope in ("runs", "followed"):
            book.log.end_scope(scope)
        book.clock.advance(8 * DAY)
        assert await book.log.prune(book.clock.now()) == 0
        await end(entry)
        unsubscribe()
        assert await book.log.prune(book.clock.now()) == 2


async def test_of_too_many_the_oldest_go_first(open_log: Open) -> None:
    async with open_log(Bounds(total_bytes=250_000)) as book:
        for scope in ("a", "b", "c", "lives"):
            await book.run(1, scope=scope, output=bytes(100_000))
            if scope != "lives":
                book.log.end_scope(scope)
            book.clock.advance(1.0)
        assert await book.log.prune(book.clock.now()) == 2
        assert book.log.scopes(ended=True) == [("c", "rollout"), ("lives", "rollout")]


async def test_a_deletion_that_is_cut_off_goes_on(
    open_log: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_module, "BATCH", 10)
    async with open_log() as book:
        for n in range(1, 101):
            await book.run(n, scope="ended", output=bytes(20_000))
        book.log.end_scope("ended")
        book.clock.advance(8 * DAY)
        pruning = asyncio.ensure_future(book.log.prune(book.clock.now()))
        for _ in range(10):
            await asyncio.sleep(0)
        assert 0 < book.log.journal.query("SELECT count(*) FROM log_steps")[0][0] < 100
        assert await book.log.prune(book.clock.now()) == 0  # one at a time
        pruning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pruning
        await book.run(1, scope="ended")  # a new log of that name
        assert blobs(tmp_path) == 1
    async with open_log() as book:
        assert await book.log.prune(book.clock.now()) == 1
        assert book.log.journal.query("SELECT count(*) FROM log_steps") == [(1,)]
        assert book.log.count("ended") == 1
        assert blobs(tmp_path) == 0


async def test_files_that_no_scope_has_are_swept(open_log: Open, tmp_path: Path) -> None:
    async with open_log() as book:
        await book.run(1, output=bytes(50_000))
        (tmp_path / "logs" / "12345.blob").write_bytes(b"left")
        (tmp_path / "logs" / "note.txt").write_bytes(b"not ours")
        assert await book.log.prune(book.clock.now()) == 0
        assert blobs(tmp_path) == 2
        assert book.answer(1).stdout_size == 50_000


async def test_the_files_are_their_owners_alone(open_log: Open, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir(mode=0o755)
    async with open_log() as book:
        await book.run(1, output=bytes(50_000))
    (file,) = (tmp_path / "logs").iterdir()
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "logs", file)] == [0o700, 0o600]


async def test_scopes_at_rest_leave_memory(open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "MAX_RESTING", 3)
    async with open_log() as book:
        for number in range(10):
            entry = await book.begin(1, scope=f"s{number}")
            book.log.end_scope(f"s{number}")
            await end(entry, b"x")
        await book.begin(1)
        assert sorted(book.log._scopes) == [SANDBOX, "s7", "s8", "s9"]
        for number in range(10):
            assert book.answer(1, scope=f"s{number}").stdout == b"x"
            await book.run(2, scope=f"s{number}")


async def test_scopes_that_have_ended_and_are_only_looked_at_leave_memory(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "MAX_RESTING", 3)
    async with open_log() as book:
        for number in range(10):
            await book.run(1, scope=f"s{number}")
            book.log.end_scope(f"s{number}")
    async with open_log() as book:
        assert [book.log.count(f"s{number}") for number in range(10)] == [1] * 10
        assert book.log._scopes == {}
        for number in range(10):
            info = book.log.info(f"s{number}")
            assert info is not None
            assert info.ended_at is not None
        assert sorted(book.log._scopes) == ["s7", "s8", "s9"]
        book.log.open_scope("s7", "rollout")
        for number in range(7):
            book.log.info(f"s{number}")
        assert sorted(book.log._scopes) == ["s4", "s5", "s6", "s7"]


async def test_bytes_of_a_scope_are_written_while_it_grows(open_log: Open) -> None:
    async with open_log() as book:
        for n in range(1, 4):
            await book.run(n, output=bytes(600_000))
        ((size,),) = book.log.journal.query("SELECT bytes FROM log_scopes")
        assert size > 1_200_000
