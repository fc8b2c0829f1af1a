"""A recorded step answers as the first time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from steps_said import ANSWER, Client, Logbook, Open, Tasks, encode, end

from dsec.commandlog import play, playback
from libdsec.protocol.frames import DATA_CHUNK, WINDOW


async def played(book: Logbook, n: int, client: Client, method: str = "exec") -> None:
    tasks = Tasks()
    client.answerer = play(book.log, book.answer(n, method=method), client, tasks.spawn)
    await client.ended.wait()
    await tasks.end()


@pytest.mark.parametrize("size", [0, 10, 16_384, 16_385, WINDOW, 3_000_001])
@pytest.mark.parametrize("grant", [1, WINDOW // 2])
async def test_output_comes_before_the_answer_within_the_window(
    open_log: Open, monkeypatch: pytest.MonkeyPatch, size: int, grant: int
) -> None:
    monkeypatch.setattr(playback, "READ_AT_ONCE", 200_000)
    async with open_log() as book:
        out = (bytes(range(251)) * (size // 251 + 1))[:size]
        await end(await book.begin(1), [out[: size // 2], out[size // 2 :]], out[: size // 5])
        client = Client(grant)
        await played(book, 1, client)
        assert client.answer == ANSWER
        assert (client.output(2), client.output(3)) == (out, out[: size // 5])
        assert all(0 < len(piece) <= DATA_CHUNK for pieces in client.streams.values() for piece in pieces)


async def test_a_small_answer_is_there_at_once(open_log: Open) -> None:
    async with open_log() as book:
        await book.run(1, output=b"x" * 16_000)
        client, tasks = Client(), Tasks()
        play(book.log, book.answer(1), client, tasks.spawn)
        assert client.ended.is_set()
        assert tasks.all == []


async def test_a_refusal_is_played_as_one(open_log: Open) -> None:
    async with open_log() as book:
        refusal = encode({"code": "not_found"})
        await end(await book.begin(1), state="error", answer=refusal)
        client = Client()
        await played(book, 1, client)
        assert client.refusal == refusal


@pytest.mark.parametrize("count", [3, 40])
async def test_data_that_are_values_are_cut_as_they_were(open_log: Open, count: int) -> None:
    async with open_log() as book:
        arrays = [encode(["entry" * (n % 7000 + 1)]) for n in range(0, count * 300, 300)]
        await end(await book.begin(1, method="file.list"), arrays)
        client = Client()
        await played(book, 1, client, method="file.list")
        assert client.streams[2] == arrays


async def test_a_caller_that_goes_away_ends_it(open_log: Open) -> None:
    async with open_log() as book:
        await book.run(1, output=bytes(1_000_000))
        client, tasks = Client(), Tasks()
        client.reads = False
        client.answerer = play(book.log, book.answer(1), client, tasks.spawn)
        while len(client.output(2)) < WINDOW:
            client.got.clear()
            await client.got.wait()
        client.answerer.cancel()
        await client.ended.wait()
        await tasks.end()
        assert client.code() == "deadline_exceeded"


async def test_a_server_that_ends_answers(open_log: Open) -> None:
    async with open_log() as book:
        await book.run(1, output=bytes(1_000_000))
        client, tasks = Client(), Tasks()
        client.reads = False
        client.answerer = play(book.log, book.answer(1), client, tasks.spawn)
        await client.got.wait()
        tasks.all[0].cancel()
        await tasks.end()
        assert client.refusal is not None


@pytest.mark.parametrize("left", [None, 10, 40_000])
async def test_a_file_that_was_cut_is_an_answer(open_log: Open, tmp_path: Path, left: int | None) -> None:
    async with open_log() as book:
        await book.run(1, output=bytes(50_000))
        (blob,) = (tmp_path / "logs").iterdir()
        if left is None:
            blob.unlink()
        else:
            blob.write_bytes(bytes(left))
        client = Client()
        await played(book, 1, client)
        assert client.code() == "integrity"


async def test_a_congested_caller_is_waited_for(open_log: Open) -> None:
    class Congested(Client):
        def __init__(self) -> None:
            super().__init__()
            self.resumes: list[object] = []

        def data(self, stream: int, payload: bytes, flags: int) -> bool:
            super().data(stream, payload, flags)
            return False

        def when_drained(self, resume: object) -> None:
            self.resumes.append(resume)
            self.got.set()

    async with open_log() as book:
        await book.run(1, output=bytes(200_000))
        client, tasks = Congested(), Tasks()
        client.answerer = play(book.log, book.answer(1), client, tasks.spawn)
        for _ in range(4):
            while not client.resumes:
                client.got.clear()
                await client.got.wait()
            before = len(client.output(2))
            await asyncio.sleep(0)
            assert len(client.output(2)) == before
            resume = client.resumes.pop()
            assert callable(resume)
            resume()
        await client.ended.wait()
        await tasks.end()
        assert client.output(2) == bytes(200_000)
