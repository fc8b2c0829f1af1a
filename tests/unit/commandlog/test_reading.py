"""log.read and log.output."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from steps_said import ANSWER, SANDBOX, Client, Logbook, Open, Tasks, encode, end

from dsec.commandlog import pages, read_log, read_output
from dsec.commandlog import reader as reader_module
from libdsec.protocol.exec import ExecRequest
from libdsec.protocol.steps import (
    INLINE_OUTPUT,
    LogOutputRequest,
    LogReadAnswer,
    LogReadRequest,
    OutputRecord,
    Step,
    request_digest,
)


def reading(book: Logbook, client: Client, tasks: Tasks, scope: str = SANDBOX, **asked: Any) -> None:
    client.answerer = read_log(book.log, LogReadRequest(scope, **asked), client, tasks.spawn)


async def read(book: Logbook, scope: str = SANDBOX, **asked: Any) -> tuple[list[Step], LogReadAnswer]:
    client, tasks = Client(), Tasks()
    reading(book, client, tasks, scope, **asked)
    await client.ended.wait()
    await tasks.end()
    assert client.answer is not None, client.refusal
    assert all(len(frame) <= pages.MAX_FRAME for frame in client.streams.get(2, []))
    return client.steps(), msgspec.msgpack.decode(client.answer, type=LogReadAnswer)


async def test_an_entry_tells_everything(open_log: Open) -> None:
    async with open_log() as book:
        began = book.clock.now()
        entry = await book.begin(1, "make")
        book.clock.advance(2.0)
        await end(entry, b"out", b"err", input_digest=b"i" * 32)
        args = ExecRequest(SANDBOX, ("sh", "-c", "make"))
        steps, answer = await read(book)
        assert answer == LogReadAnswer(1, 1)
        assert steps == [
            Step(
                1,
                "main",
                1,
                "exec",
                request_digest("exec", args),
                "result",
                began,
                SANDBOX,
                began + 2.0,
                msgspec.Raw(encode(args)),
                msgspec.Raw(ANSWER),
                OutputRecord(3, b"out"),
                OutputRecord(3, b"err"),
                b"i" * 32,
                "",
                "root",
            )
        ]
        (bare,), _ = await read(book, requests=False)
        assert bytes(bare.request) == b"\xc0"


async def test_states_and_sizes(open_log: Open) -> None:
    async with open_log() as book:
        await book.begin(1)
        await end(await book.begin(2), state="unknown", answer=b"")
        await end(await book.begin(3), state="error", answer=encode({"code": "x"}))
        await end(await book.begin(4, opaque="a terminal"), b"screen")
        await book.run(5, output=bytes(INLINE_OUTPUT))
        await book.run(6, output=bytes(INLINE_OUTPUT + 1))
        await book.run(7, output=bytes(100_000))
        steps, _ = await read(book)
        assert [step.state for step in steps] == ["running", "unknown", "error", *["result"] * 4]
        assert [step.ended_at is None for step in steps] == [True, *[False] * 6]
        assert [bytes(step.answer) == b"\xc0" for step in steps] == [True, True, *[False] * 5]
        assert steps[3].opaque == "a terminal"
        assert steps[3].stdout == OutputRecord(6)
        assert [step.stdout.data is None for step in steps[4:]] == [False, True, True]
        assert [step.stdout.size for step in steps[4:]] == [INLINE_OUTPUT, INLINE_OUTPUT + 1, 100_000]


async def test_filters_and_limits(open_log: Open) -> None:
    other = "edgeaaaa" + "c" * 16
    async with open_log() as book:
        for n in range(1, 6):
            await book.run(n, scope="rollout")
            await book.run(n, scope="rollout", track="main/1", sandbox=other)

        async def seqs(**asked: Any) -> list[int]:
            return [step.seq for step in (await read(book, "rollout", **asked))[0]]

        assert await seqs() == list(range(1, 11))
        assert await seqs(after=7) == [8, 9, 10]
        assert await seqs(track="main") == [1, 3, 5, 7, 9]
        assert await seqs(sandbox=other) == [2, 4, 6, 8, 10]
        assert await seqs(sandbox=other, track="main") == []
        assert await seqs(limit=3) == [1, 2, 3]
        assert await seqs(limit=3, last=True) == [8, 9, 10]
        assert await seqs(limit=2, last=True, track="main") == [7, 9]
        assert await seqs(limit=100, last=True) == list(range(1, 11))
        assert await seqs(limit=3, last=True, after=9) == [10]


async def test_a_log_that_is_not_there_is_empty(open_log: Open) -> None:
    async with open_log() as book:
        assert await read(book, "nobody") == ([], LogReadAnswer(0, 0))
        assert book.log.info("nobody") is None


@pytest.mark.parametrize("at_once", [3_000, pages.READ_AT_ONCE])
async def test_many_steps_come_in_many_frames(open_log: Open, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(pages, "READ_AT_ONCE", at_once)
    async with open_log() as book:
        for n in range(1, 301):
            await book.run(n, output=bytes(n * 10 % 4000))
        steps, answer = await read(book)
        assert [step.seq for step in steps] == list(range(1, 301))
        assert all(step.stdout.size == step.n * 10 % 4000 for step in steps)
        assert answer == LogReadAnswer(300, 300)
        steps, answer = await read(book, limit=250)
        assert (len(steps), answer.steps) == (250, 250)


async def test_an_entry_never_is_larger_than_credit_may_be(open_log: Open) -> None:
    async with open_log() as book:
        await end(await book.begin(1, "x" * 200_000), answer=encode({"a": "y" * 1000}))
        await end(await book.begin(2, "x" * 200_000), answer=encode({"a": "y" * 200_000}))
        steps, _ = await read(book)
        assert [bytes(step.request) == b"\xc0" for step in steps] == [True, True]
        assert [bytes(step.answer) == b"\xc0" for step in steps] == [False, True]


async def test_a_reader_that_goes_away_ends_it(open_log: Open) -> None:
    async with open_log() as book:
        for n in range(1, 101):
            await book.run(n, output=bytes(4000))
        client, tasks = Client(), Tasks()
        client.reads = False
        reading(book, client, tasks)
        await client.got.wait()
        assert client.answerer is not None
        client.answerer.cancel()
        await client.ended.wait()
        await tasks.end()
        assert client.answer is not None


async def test_following_sends_each_step_when_it_has_ended_and_none_twice(open_log: Open) -> None:
    async with open_log() as book:
        await book.run(1)
        running = await book.begin(2)
        client, tasks = Client(), Tasks()
        reading(book, client, tasks, follow=True)
        await came(client, 2)
        assert [(step.seq, step.state) for step in client.steps()] == [(1, "result"), (2, "running")]
        await book.run(3)
        await came(client, 3)
        await end(running, b"late")
        await came(client, 4)
        for n in range(4, 40):
            await book.run(n, output=bytes(10_000))
        await came(client, 40)
        assert [step.seq for step in client.steps()] == [1, 2, 3, 2, *range(4, 40)]
        assert client.answerer is not None
        client.answerer.cancel()
        await client.ended.wait()
        await tasks.end()
        assert client.answer is not None
        assert msgspec.msgpack.decode(client.answer) == {"steps": 40, "last_seq": 39}
        await book.run(40)  # nobody follows any more
        assert len(client.steps()) == 40


async def test_following_filters_and_ends_at_its_limit(open_log: Open) -> None:
    async with open_log() as book:
        client, tasks = Client(), Tasks()
        await book.run(1)
        reading(book, client, tasks, follow=True, track="main", limit=3)
        await came(client, 1)
        for n in range(2, 5):
            await book.run(n - 1, track="other/1")
            await book.run(n)
        await client.ended.wait()
        await tasks.end()
        assert [(step.track, step.n) for step in client.steps()] == [("main", 1), ("main", 2), ("main", 3)]


async def test_following_tells_nothing_of_what_began_before(open_log: Open) -> None:
    async with open_log() as book:
        early = await book.begin(1)
        client, tasks = Client(), Tasks()
        await book.run(2)
        reading(book, client, tasks, follow=True, after=1, limit=2)
        await came(client, 1)
        await end(early)
        await book.run(3)
        await client.ended.wait()
        await tasks.end()
        assert [step.n for step in client.steps()] == [2, 3]


async def test_a_follower_that_does_not_read_is_told(open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "MAX_BEHIND", 50)
    async with open_log() as book:
        client, tasks = Client(), Tasks()
        client.reads = False
        reading(book, client, tasks, follow=True)
        for n in range(1, 400):
            await book.run(n, output=bytes(4000))
        client.reads = True
        for stream in client.streams:
            client.grant(stream)
        await client.ended.wait()
        await tasks.end()
        assert client.code() == "quota_exceeded"


async def test_a_follower_of_what_has_not_begun_waits_for_it(open_log: Open) -> None:
    async with open_log() as book:
        client, tasks = Client(), Tasks()
        reading(book, client, tasks, scope="later", follow=True, limit=3)
        await asyncio.sleep(0)
        for n in range(1, 4):
            await book.run(n, scope="later")
        await client.ended.wait()
        await tasks.end()
        assert {step.n for step in client.steps()} > {1}


async def test_a_follower_of_what_never_begins_leaves_nothing(open_log: Open) -> None:
    async with open_log() as book:
        client, tasks = Client(), Tasks()
        reading(book, client, tasks, scope="nobody", follow=True)
        await asyncio.sleep(0)
        assert client.answerer is not None
        client.answerer.abandon()
        await tasks.end()
        assert book.log.info("nobody") is None


async def test_a_reading_that_the_server_ends_is_answered(open_log: Open) -> None:
    async with open_log() as book:
        client, tasks = Client(), Tasks()
        reading(book, client, tasks, follow=True)
        await asyncio.sleep(0)
        tasks.all[0].cancel()
        await tasks.end()
        assert client.code() == "unavailable"


async def output(book: Logbook, n: int, scope: str = SANDBOX) -> Client:
    client, tasks = Client(), Tasks()
    client.answerer = read_output(book.log, LogOutputRequest(scope, "main", n), client, tasks.spawn)
    await client.ended.wait()
    await tasks.end()
    return client


@pytest.mark.parametrize("size", [0, 1, 5_000, 300_000, 3_000_000])
async def test_the_output_of_a_step(open_log: Open, size: int) -> None:
    async with open_log() as book:
        out, err = bytes(range(256)) * (size // 256), b"e" * (size // 3)
        await end(await book.begin(1), out, err)
        client = await output(book, 1)
        assert (client.output(2), client.output(3)) == (out, err)
        assert client.answer is not None
        step = msgspec.msgpack.decode(client.answer, type=Step)
        assert (step.n, step.stdout, step.stderr) == (1, OutputRecord(len(out)), OutputRecord(len(err)))


@pytest.mark.parametrize("moment", ["before it is looked for", "after"])
async def test_the_output_of_a_step_that_ends_meanwhile(
    open_log: Open, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    async with open_log() as book:
        entry = await book.begin(1)
        find = reader_module._find

        async def found(*asked: Any) -> Step:
            if moment != "after":
                await end(entry, b"out")
            step = await find(*asked)
            if moment == "after":
                await end(entry, b"out")
            return step

        monkeypatch.setattr(reader_module, "_find", found)
        client, tasks = Client(), Tasks()
        client.answerer = read_output(book.log, LogOutputRequest(SANDBOX, "main", 1), client, tasks.spawn)
        await client.ended.wait()
        await tasks.end()
        assert client.answer is not None
        state = msgspec.msgpack.decode(client.answer, type=Step).state
        assert (state, client.output(2)) == (("running", b"") if moment == "after" else ("result", b"out"))


async def test_the_output_of_what_has_none(open_log: Open) -> None:
    async with open_log() as book:
        await book.begin(1)
        await end(await book.begin(2, opaque="a terminal"), b"screen")
        for n, state in ((1, "running"), (2, "result")):
            client = await output(book, n)
            assert client.streams == {}
            assert client.answer is not None
            assert msgspec.msgpack.decode(client.answer, type=Step).state == state
        assert (await output(book, 3)).code() == "not_found"
        assert (await output(book, 1, "nobody")).code() == "not_found"


async def came(client: Client, steps: int) -> None:
    while len(client.steps()) < steps:
        client.got.clear()
        await client.got.wait()
