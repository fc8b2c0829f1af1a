"""What a call is: new, recorded, running, another one, or in doubt."""

from __future__ import annotations

import asyncio

import pytest
from steps_said import ANSWER, SANDBOX, Open, encode, end, outcome, withdraw

from dsec.commandlog import Begun, Bounds, Joined, Recorded, RecordedStep
from dsec.commandlog import scope as scope_module
from libdsec.protocol.errors import (
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


async def test_tracks_beyond_what_is_kept_in_memory(open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope_module, "MAX_TRACKS", 3)
    async with open_log() as book:
        for key in range(10):
            await book.run(1, track=f"key:{key}")
        for key in range(10):
            assert book.answer(1, track=f"key:{key}").track == f"key:{key}"
