"""What a call is: new, recorded, running, another one, or in doubt."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from steps_said import ANSWER, SANDBOX, Logbook, Open, begun, encode, end, outcome, withdraw

from dsec.commandlog import Begun, Bounds, Joined, Recorded, RecordedStep
from dsec.commandlog import scope as scope_module
from libdsec.protocol.errors import (
    CapacityError,
    InvalidArgumentError,
    OutcomeUnknownError,
    QuotaExceededError,
    ReplayDivergedError,
    UnavailableError,
    UnsupportedOperationError,
)
from libdsec.protocol.exec import ExecRequest
from libdsec.protocol.files import FileReadRequest
from libdsec.protocol.steps import MAX_RECORDED_OUTPUT, StepTag


async def test_a_step_is_in_the_log_before_it_may_run_and_its_outcome_before_it_is_told(open_log: Open) -> None:
    async with open_log() as book:
        count = "SELECT count(*) FROM log_steps WHERE state = ?"
        said = book.say(1)
        assert isinstance(said, Begun)
        assert book.log.journal.look(count, (0,)) == [(0,)]
        await begun(said.entry)
        assert book.log.journal.look(count, (0,)) == [(1,)]
        told: list[list[tuple[int]]] = []
        done = asyncio.Event()

        def then() -> None:
            told.append(book.log.journal.look(count, (1,)))
            done.set()

        said.entry.end(state="result", answer=ANSWER, stdout=[b"a", b"b"], stderr=[b"c"], then=then, failed=pytest.fail)
        assert told == []
        await done.wait()
        assert told == [[(1,)]]


async def test_when_begun_calls_at_once_what_comes_after_the_commit(open_log: Open) -> None:
    async with open_log() as book:
        entry = await book.begin(1)
        told: list[str] = []
        entry.when_begun(lambda: told.append("begun"), lambda _: told.append("failed"))
        assert told == ["begun"]


async def test_a_step_said_again_is_answered_from_the_record(open_log: Open) -> None:
    async with open_log() as book:
        entry = await book.begin(1)
        await end(entry, [b"out", b"put"], b"err", input_digest=b"d" * 32)
        step = book.answer(1)
        assert (step.state, step.answer, step.stdout, step.stderr) == ("result", ANSWER, b"output", b"err")
        assert (step.stdout_size, step.stderr_size, step.seq, step.n) == (6, 3, 1, 1)
    async with open_log() as book:
        assert book.answer(1) == step
        await book.run(2)


async def test_a_refusal_is_an_answer_too(open_log: Open) -> None:
    async with open_log() as book:
        await end(await book.begin(1), state="error", answer=encode({"code": "not_found"}))
        assert book.answer(1).state == "error"


async def test_another_sandbox_makes_no_other_request(open_log: Open) -> None:
    async with open_log() as book:
        await book.run(1, scope="rollout")
        assert book.answer(1, scope="rollout", sandbox="edgeaaaa" + "c" * 16).seq == 1


async def test_numbers_of_a_track_leave_nothing_out(open_log: Open) -> None:
    async with open_log() as book:
        with pytest.raises(InvalidArgumentError, match="main#2"):
            book.say(2)
        await book.run(1)
        with pytest.raises(InvalidArgumentError, match="the last one there is 1"):
            book.say(3)
        assert isinstance(book.say(1, track="other/3"), Begun)
        with pytest.raises(InvalidArgumentError, match="printable"):
            book.say(1, track="a\nb")
        with pytest.raises(InvalidArgumentError):
            book.say(-1)


async def test_the_log_numbers_what_has_no_number(open_log: Open) -> None:
    async with open_log() as book:
        entries = [await book.begin(0, track="cli") for _ in range(3)]
        assert [entry.n for entry in entries] == [1, 2, 3]
        args = ExecRequest(SANDBOX, ("true",))
        for number in (1, 2):
            said = book.log.begin(
                scope=SANDBOX,
                tag=None,
                sandbox=SANDBOX,
                method="exec",
                args=args,
                request=encode(args),
                principal="root",
            )
            assert isinstance(said, Begun)
            assert (said.entry.track, said.entry.n) == ("other", number)


async def test_divergence_says_what_was_expected_and_what_came(open_log: Open) -> None:
    async with open_log() as book:
        await book.run(1, "make all")
        with pytest.raises(ReplayDivergedError) as raised:
            book.say(1, "make test")
        assert raised.value.details == {
            "scope": SANDBOX,
            "track": "main",
            "n": 1,
            "expected": "exec argv=['sh', '-c', 'make all']",
            "got": "exec argv=['sh', '-c', 'make test']",
        }
        assert "main#1" in str(raised.value)
        args = FileReadRequest(SANDBOX, "/etc/passwd")
        with pytest.raises(ReplayDivergedError) as other:
            book.log.begin(
                scope=SANDBOX,
                tag=StepTag("main", 1),
                sandbox=SANDBOX,
                method="file.read",
                args=args,
                request=encode(args),
                principal="root",
            )
        assert other.value.details["got"] == "file.read path='/etc/passwd'"
        await book.begin(2, "sleep 1")
        with pytest.raises(ReplayDivergedError, match="sleep 2"):  # of one that runs
            book.say(2, "sleep 2")
        await book.run(3, "x" * 10_000)
        with pytest.raises(ReplayDivergedError) as long:
            book.say(3, "y" * 10_000)
        assert len(str(long.value)) < 1200


async def test_what_runs_is_joined(open_log: Open) -> None:
    async with open_log() as book:
        entry = await book.begin(1)
        first, second = book.say(1), book.say(1)
        assert isinstance(first, Joined)
        assert isinstance(second, Joined)
        waiting = [asyncio.ensure_future(outcome(joined)) for joined in (first, second)]
        await asyncio.sleep(0)
        await end(entry, b"out")
        for told in [await one for one in waiting]:
            assert isinstance(told, RecordedStep)
            assert told.stdout == b"out"


async def test_who_joined_what_did_not_run_may_say_it_again(open_log: Open) -> None:
    async with open_log() as book:
        entry = await book.begin(1)
        joined = book.say(1)
        assert isinstance(joined, Joined)
        waiting = asyncio.ensure_future(outcome(joined))
        await asyncio.sleep(0)
        await withdraw(entry)
        told = await waiting
        assert isinstance(told, UnavailableError)
        assert told.retry == "same_request"
        again = await book.begin(1, "something else")
        assert again.seq == 2
        assert again.key != entry.key


async def test_a_withdrawn_number_is_free_also_behind_later_ones(open_log: Open) -> None:
    async with open_log() as book:
        first, second = await book.begin(1), await book.begin(2)
        await withdraw(first)
        await end(second)
        await book.run(1, "other")
        assert book.answer(1, "other").seq == 3
        await book.run(3)
    async with open_log() as book:
        assert [book.answer(n, command).seq for n, command in ((1, "other"), (2, "true"), (3, "true"))] == [3, 2, 4]


async def test_a_step_behind_withdrawn_ones_is_found_after_a_crash(open_log: Open, tmp_path: Path) -> None:
    async with open_log() as book:
        for _ in range(3):
            await withdraw(await book.begin(1))
    async with open_log() as book:
        key = (await book.begin(1)).key
        copy = copied(tmp_path)
    async with open_log(directory=copy) as book:
        assert [step.key for step in book.log.running()] == [key]


async def test_an_unknown_outcome_is_told_and_the_caller_may_choose_to_run_it_again(open_log: Open) -> None:
    async with open_log() as book:
        entry = await book.begin(1)
        joined = book.say(1)
        assert isinstance(joined, Joined)
        waiting = asyncio.ensure_future(outcome(joined))
        await asyncio.sleep(0)
        await end(entry, state="unknown", answer=b"")
        assert isinstance(await waiting, OutcomeUnknownError)
        with pytest.raises(OutcomeUnknownError) as raised:
            book.say(1)
        assert raised.value.details == {"scope": SANDBOX, "track": "main", "n": 1, "method": "exec"}
        with pytest.raises(ReplayDivergedError):
            book.say(1, "other", again=True)
        again = await book.begin(1, again=True)
        assert (again.seq, again.key != entry.key) == (1, True)
        await withdraw(again)  # the first run may still have done something
        with pytest.raises(OutcomeUnknownError):
            book.say(1)
        await end(await book.begin(1, again=True), b"second")
        assert book.answer(1, again=True).stdout == b"second"


async def test_an_opaque_step_is_recorded_and_not_replayed(open_log: Open) -> None:
    async with open_log() as book:
        entry = await book.begin(1, opaque="it was a terminal")
        joined = book.say(1)
        assert isinstance(joined, Joined)
        waiting = asyncio.ensure_future(outcome(joined))
        await asyncio.sleep(0)
        await end(entry, b"screen")
        assert isinstance(await waiting, UnsupportedOperationError)
        with pytest.raises(UnsupportedOperationError, match="it was a terminal"):
            book.say(1)


async def test_more_output_than_is_recorded_makes_a_step_opaque(open_log: Open) -> None:
    async with open_log() as book:
        piece = bytes(1024 * 1024)
        entry = await book.begin(1)
        await end(entry, [piece] * (MAX_RECORDED_OUTPUT // len(piece)), b"!")
        with pytest.raises(UnsupportedOperationError, match=str(MAX_RECORDED_OUTPUT + 1)):
            book.say(1)


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


async def test_programs_side_by_side_on_a_durable_log(open_log: Open) -> None:
    async with open_log(durable=True) as book:

        async def program(scope: str) -> None:
            for n in range(1, 11):
                entry = await book.begin(n, scope=scope)
                joined = book.say(n, scope=scope)
                assert isinstance(joined, Joined)
                told, _ = await asyncio.gather(outcome(joined), end(entry, b"%d" % n * n * 2000))
                assert isinstance(told, RecordedStep)
                assert book.answer(n, scope=scope) == told
                if told.stdout is None:
                    output = await book.log.read_blob(told.scope_id, told.blob_at, told.stdout_size)
                    assert output == b"%d" % n * n * 2000

        await asyncio.gather(*(program(f"s{number}") for number in range(8)))
    async with open_log() as book:
        assert [book.log.count(f"s{number}") for number in range(8)] == [10] * 8


async def test_a_step_is_ended_once(open_log: Open) -> None:
    async with open_log() as book:
        entry = await book.run(1)
        with pytest.raises(RuntimeError):
            await end(entry)
        with pytest.raises(RuntimeError):
            entry.withdraw(lambda: None)


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


@pytest.mark.parametrize(
    "key",
    [
        "",
        "x",
        "1:2",
        "1:2:3:4",
        "a:b:c",
        "-1:1:1",
        "1:1:1",
        "²:1:1",
        "9" * 60,
        "9" * 30 + ":1:1",
        "1:" + "9" * 30 + ":1",
        ":" * 500,
    ],
)
async def test_a_key_that_was_never_given_names_nothing(open_log: Open, key: str) -> None:
    async with open_log() as book:
        await book.begin(1)
        assert book.log.by_key(key, SANDBOX) is None


async def test_keys_are_never_given_twice(open_log: Open) -> None:
    keys: list[str] = []
    for _ in range(3):
        async with open_log() as book:
            entry = await book.begin(1)
            keys.append(entry.key)
            await withdraw(entry)
    assert len(set(keys)) == 3
    assert all(len(key) <= 64 for key in keys)


async def test_bounds_of_a_scope_are_answers_that_name_them(open_log: Open) -> None:
    async with open_log(Bounds(steps=3)) as book:
        for n in range(1, 4):
            await book.run(n)
        with pytest.raises(QuotaExceededError) as raised:
            book.say(4)
        assert raised.value.details == {"scope": SANDBOX, "bound": "steps", "limit": 3}
        assert isinstance(book.say(3), Recorded)
        assert isinstance(book.say(1, scope="another"), Begun)
        await book.run(4, method="sandbox.stop")
    async with open_log(Bounds(bytes=10_000)) as book:
        await book.run(1, output=bytes(9_000), scope="bytes")
        with pytest.raises(QuotaExceededError, match="bytes"):
            book.say(2, "x" * 1000, scope="bytes")


async def test_bytes_are_known_after_a_restart(open_log: Open) -> None:
    async with open_log(Bounds(bytes=10_000)) as book:
        await book.run(1, output=bytes(9_900))
    async with open_log(Bounds(bytes=10_000)) as book:
        with pytest.raises(QuotaExceededError, match="bytes"):
            book.say(2)


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


async def test_tracks_beyond_what_is_kept_in_memory(open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope_module, "MAX_TRACKS", 3)
    async with open_log() as book:
        for key in range(10):
            await book.run(1, track=f"key:{key}")
        for key in range(10):
            assert book.answer(1, track=f"key:{key}").track == f"key:{key}"


def set_room(book: Logbook, pages: int) -> None:
    """How many pages the file may grow by."""
    ((size,),) = book.log.journal.query("PRAGMA page_count")
    book.log.journal.query(f"PRAGMA max_page_count = {size + pages}")


def copied(home: Path, name: str = "copy") -> Path:
    """The files as a crash would leave them now."""
    copy = home / f"crash-{name}"
    copy.mkdir()
    for file in ("edge.db", "edge.db-wal"):
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
