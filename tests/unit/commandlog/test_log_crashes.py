"""Steps across crashes and full disks: what the next server finds."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from steps_said import ANSWER, SANDBOX, Logbook, Open, begun, end, withdraw

from dsec.commandlog import SCHEMA, Begun, Joined
from dsec.journal import Journal
from libdsec.protocol.errors import (
    CapacityError,
    OutcomeUnknownError,
    ReplayDivergedError,
)


async def test_a_step_is_in_the_log_before_it_may_run_and_its_outcome_before_it_is_told(
    open_log: Open, tmp_path: Path
) -> None:
    async with open_log() as book:
        said = book.say(1)
        assert isinstance(said, Begun)
        assert states(tmp_path, "first") == []
        await begun(said.entry)
        assert states(tmp_path, "begun") == [0]
        told: list[list[int]] = []

        def then() -> None:
            told.append(states(tmp_path, "ended"))

        said.entry.end(state="result", answer=ANSWER, stdout=[b"a", b"b"], stderr=[b"c"], then=then, failed=pytest.fail)
        assert told == [[1]]


async def test_a_step_behind_withdrawn_ones_is_found_after_a_crash(open_log: Open, tmp_path: Path) -> None:
    async with open_log() as book:
        for _ in range(3):
            await withdraw(await book.begin(1))
    async with open_log() as book:
        key = (await book.begin(1)).key
        copy = copied(tmp_path)
    async with open_log(directory=copy) as book:
        assert [step.key for step in book.log.running()] == [key]


async def test_output_whose_file_cannot_be_written_makes_the_outcome_unknown(open_log: Open, tmp_path: Path) -> None:
    async with open_log() as book:
        entries = [await book.begin(n) for n in (1, 2)]
        (tmp_path / "logs").rmdir()
        for entry, size in zip(entries, (50_000, 2_000_000), strict=True):
            with pytest.raises(CapacityError, match=r"\.blob"):
                await end(entry, bytes(size))
        (tmp_path / "logs").mkdir()
        for n, size in ((1, 50_000), (2, 2_000_000)):
            with pytest.raises(OutcomeUnknownError):
                book.say(n)
            await end(await book.begin(n, again=True), bytes(size))
            assert book.answer(n).stdout_size == size


async def test_steps_that_ran_when_the_server_died_are_open_again(open_log: Open, tmp_path: Path) -> None:
    async with open_log() as book:
        for n in range(1, 200):
            await book.run(n)
        running = [await book.begin(n) for n in (200, 201, 202)]
        elsewhere = await book.begin(1, scope="rollout")
        copy = copied(tmp_path)
        keys = [entry.key for entry in running]
    async with open_log(directory=copy) as book:
        assert [(step.scope, step.n) for step in book.log.running()] == [
            (SANDBOX, 200),
            (SANDBOX, 201),
            (SANDBOX, 202),
            ("rollout", 1),
        ]
        assert isinstance(book.say(200), Joined)
        assert book.log.scopes() == [(SANDBOX, "sandbox"), ("rollout", "rollout")]
        first = book.log.by_key(keys[0], SANDBOX)
        assert first is not None
        assert (first.key, first.n) == (keys[0], 200)
        assert book.log.by_key(elsewhere.key, "edgeaaaa" + "c" * 16) is None
        await end(first, b"late")
        assert book.log.by_key(keys[0], SANDBOX) is None
        assert book.answer(200).stdout == b"late"
        second, third = (book.log.resume(SANDBOX, entry.seq) for entry in running[1:])
        assert second is not None
        assert third is not None
        await withdraw(second)
        await end(third, state="unknown", answer=b"")
        await book.run(201)
        with pytest.raises(OutcomeUnknownError):
            book.say(202)


async def test_a_full_disk_at_the_beginning_leaves_no_step(open_log: Open) -> None:
    async with open_log() as book:
        await book.run(1)
        set_room(book, 0)
        said = [book.say(2, "x" * 20_000), book.say(3, "x" * 20_000)]  # the second was said too early
        joined = book.say(2, "x" * 20_000)
        assert isinstance(joined, Joined)
        told: list[object] = []
        joined.entry.join(told.append)
        for one in said:
            assert isinstance(one, Begun)
            with pytest.raises(CapacityError, match=r"edge\.db"):
                await begun(one.entry)
        assert [type(one) for one in told] == [CapacityError]
        set_room(book, 1000)
        for n in (2, 3):
            await book.run(n)
        assert book.log.running() == []


async def test_a_full_disk_at_the_end_makes_the_outcome_unknown_until_the_record_is_made(
    open_log: Open, tmp_path: Path
) -> None:
    async with open_log() as book:
        entry = await book.begin(1)
        joined = book.say(1)
        assert isinstance(joined, Joined)
        told: list[object] = []
        joined.entry.join(told.append)
        set_room(book, 0)
        with pytest.raises(CapacityError):
            await end(entry, bytes(15_000))
        assert [type(one) for one in told] == [OutcomeUnknownError]
        with pytest.raises(OutcomeUnknownError, match="could not be recorded"):
            book.say(1)
        set_room(book, 1000)
        copy = copied(tmp_path)
        again = await book.begin(1, again=True)
        await withdraw(again)
        with pytest.raises(OutcomeUnknownError):
            book.say(1)
    async with open_log(directory=copy) as book:
        # after a restart init still has the answer
        same = book.log.by_key(entry.key, SANDBOX)
        assert same is not None
        await end(same, bytes(15_000))
        assert book.answer(1).stdout_size == 15_000


async def test_a_row_that_cannot_be_taken_out_is_taken_over(open_log: Open) -> None:
    async with open_log() as book:
        entry = await book.begin(1)
        writable(book, False)
        await withdraw(entry)
        with pytest.raises(CapacityError):
            await book.begin(1, "another")
        writable(book, True)
        await book.run(1, "another")
        assert book.answer(1, "another").seq == 1
        with pytest.raises(ReplayDivergedError):
            book.say(1)
        await book.run(2)


async def test_a_row_that_could_not_be_taken_out_goes_when_there_is_room(open_log: Open, tmp_path: Path) -> None:
    async with open_log() as book:
        entry = await book.begin(1)
        writable(book, False)
        await withdraw(entry)
        book.log.mend()
        book.log.journal.flush_now()
        writable(book, True)
        book.log.mend()
        assert isinstance(book.say(1), Joined)  # it is on its way out
        book.log.journal.flush_now()
        copy = copied(tmp_path)
    async with open_log(directory=copy) as book:
        assert book.log.running() == []
        await book.run(1, "another")


async def test_a_lost_step_may_be_run_again_also_when_that_could_not_be_begun(open_log: Open) -> None:
    async with open_log() as book:
        entry = await book.begin(1)
        for verb in (end, withdraw):
            writable(book, False)
            if verb is end:
                with pytest.raises(CapacityError):
                    await end(entry)
            else:
                await withdraw(entry)
            with pytest.raises(CapacityError):
                await book.begin(1, again=True)
            writable(book, True)
            with pytest.raises(OutcomeUnknownError):
                book.say(1)
            entry = await book.begin(1, again=True)
        assert entry.tried == 1
        await end(entry)
        assert book.answer(1).seq == 1


def writable(book: Logbook, yes: bool) -> None:
    book.log.journal.query(f"PRAGMA query_only = {int(not yes)}")
    book.log.journal._waiting = None  # nothing is written ahead any more


async def test_every_acknowledged_end_is_in_a_copy_made_at_any_moment(open_log: Open, tmp_path: Path) -> None:
    async with open_log() as book:
        copies = []
        for n in range(1, 12):
            await book.run(n, output=bytes([n]) * (n * 3000))
            copies.append(copied(tmp_path, str(n)))
    for last, copy in enumerate(copies, 1):
        async with open_log(directory=copy) as book:
            for n in range(1, last + 1):
                step = book.answer(n)
                assert step.stdout_size == n * 3000
                if step.stdout is None:
                    assert await book.log.read_blob(step.scope_id, step.blob_at, n * 3000) == bytes([n]) * (n * 3000)
            assert isinstance(book.say(last + 1), Begun)


def set_room(book: Logbook, pages: int) -> None:
    """How many pages the file may grow by. Nothing is written ahead any more, as on a disk without room for that."""
    ((size,),) = book.log.journal.query("PRAGMA page_count")
    book.log.journal.query(f"PRAGMA max_page_count = {size + pages}")
    book.log.journal._waiting = None


def states(home: Path, name: str) -> list[int]:
    """Of the steps that the next server would find, if this one died now."""
    copy = copied(home, name)

    async def read() -> list[int]:
        journal = Journal(str(copy / "edge.db"), asyncio.get_running_loop(), (SCHEMA,))
        try:
            return [state for (state,) in journal.query("SELECT state FROM log_steps")]
        finally:
            await journal.close()

    # beside the loop that runs here
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, read()).result()


def copied(home: Path, name: str = "copy") -> Path:
    """The files as a crash would leave them now."""
    copy = home / f"crash-{name}"
    copy.mkdir()
    for file in ("edge.db", "edge.db-wal", "edge.db-ahead"):
        shutil.copy(home / file, copy / file)
    shutil.copytree(home / "logs", copy / "logs")
    return copy


CHILD = """
import asyncio, sys
import uvloop
sys.path.insert(0, sys.argv[2])
from steps_said import Logbook
from dsec.commandlog import SCHEMA, CommandLog
from dsec.journal import Journal
from dsec.testing.fake_clock import FakeClock

async def main():
    clock = FakeClock()
    journal = Journal(sys.argv[1] + "/edge.db", asyncio.get_running_loop(), (SCHEMA,))
    book = Logbook(CommandLog(journal, sys.argv[1] + "/logs", clock), clock)

    async def program(track):
        for n in range(1, 1_000_000):
            await book.run(n, output=(b"%d " % n) * (4000 if n % 50 == 0 else 10), track=track)
            print(track, n, flush=True)

    await asyncio.gather(*(program(f"t{k}") for k in range(4)))

uvloop.run(main())
"""


def killed(home: Path, steps: int) -> dict[str, int]:
    """The last step of each track that a child was told is recorded, before it was killed in the middle of more."""
    here = str(Path(__file__).parent)
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(home), here], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    last: dict[str, int] = {}
    with child:
        try:
            for _ in range(steps):
                track, n = child.stdout.readline().split()
                last[track] = int(n)
        finally:
            os.kill(child.pid, signal.SIGKILL)
        for line in child.stdout:
            if line.endswith("\n"):
                track, n = line.split()
                last[track] = int(n)
    return last


async def test_a_kill_in_the_middle_of_many_steps_loses_none_that_was_told(open_log: Open, tmp_path: Path) -> None:
    last = killed(tmp_path, 1000)
    async with open_log() as book:
        for track, told in last.items():
            for n in range(1, told + 1):
                step = book.answer(n, track=track)
                wanted = (b"%d " % n) * (4000 if n % 50 == 0 else 10)
                if step.stdout is None:
                    assert await book.log.read_blob(step.scope_id, step.blob_at, len(wanted)) == wanted
                else:
                    assert step.stdout == wanted
        for step in book.log.running():
            await end(step, state="unknown", answer=b"")
        for track in last:
            n = book.log.journal.query("SELECT max(n) FROM log_steps WHERE track = ?", (track,))[0][0]
            await book.run(n + 1, track=track)
