"""What the loop hears of reads of chunks that are there."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

from dsec.store.loading.opened import MAX_NOTES, Opened


class Heard:
    def __init__(self) -> None:
        self.chunks: list[tuple[int, int]] = []

    def passed(self, first: int, end: int) -> None:
        self.chunks.append((first, end))


def an_opened() -> tuple[Opened, Heard]:
    opened, heard = Opened(cast("Any", None), cast("Any", None)), Heard()
    opened.filling = cast("Any", heard)
    return opened, heard


async def test_the_same_again_is_told_once() -> None:
    opened, heard = an_opened()
    for chunks in [(1, 2), (1, 2), (3, 5), (3, 5), (1, 2)]:
        opened.note(asyncio.get_running_loop(), chunks)
    await asyncio.sleep(0)
    assert heard.chunks == [(1, 2), (3, 5), (1, 2)]
    opened.note(asyncio.get_running_loop(), (7, 8))
    await asyncio.sleep(0)
    assert heard.chunks[3:] == [(7, 8)]


async def test_a_loop_that_cannot_follow_hears_of_the_latest() -> None:
    opened, heard = an_opened()
    loop = asyncio.get_running_loop()

    def read() -> None:
        for chunk in range(10 * MAX_NOTES):
            opened.note(loop, (chunk, chunk + 1))

    reader = threading.Thread(target=read)
    reader.start()
    reader.join()
    await asyncio.sleep(0.01)
    assert heard.chunks == [(chunk, chunk + 1) for chunk in range(9 * MAX_NOTES, 10 * MAX_NOTES)]
