"""A child process of a pull: reads jobs from standard input and does one after the other, answers on standard output.

It talks to the registry, unpacks, and writes layers into the directory that it is told; it knows no store. When its
input ends, its parent has gone or wants no more, and it ends at once, in the middle of whatever it does.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import Final

from dsec.store import disk_full
from libdsec.protocol.errors import DSecError, InternalError

from .convert import convert
from .inherit import inherit
from .messages import (
    Answer,
    Built,
    Convert,
    Failed,
    Found,
    Frames,
    Inherit,
    Job,
    Resolve,
    Start,
    Told,
    decode_job,
    frame,
)
from .reference import parse_place
from .source import ImageSource, open_source

NICENESS: Final = 5
"""Sandboxes come first."""
TOLD_BYTES: Final = 1024 * 1024
TOLD_S: Final = 0.5


def main() -> None:
    os.nice(NICENESS)
    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    # what a library prints must not get between the answers
    output = os.dup(1)
    os.dup2(2, 1)
    start = jobs.get()
    assert isinstance(start, Start)
    worker = _Worker(start, output)
    while True:
        worker.do(jobs.get())


def _listen(jobs: queue.SimpleQueue[Job]) -> None:
    frames = Frames()
    try:
        while data := os.read(0, 1 << 16):
            for payload in frames.feed(data):
                jobs.put(decode_job(payload))
    finally:
        os._exit(0)


class _Worker:
    def __init__(self, start: Start, output: int) -> None:
        self._start = start
        self._output = output
        self._source: ImageSource | None = None
        self._untold = 0
        self._told_at = 0.0

    def do(self, job: Job) -> None:
        self._untold = 0
        try:
            answer = self._answer(job)
        except DSecError as error:
            answer = Failed(error.body())
        except Exception as error:
            answer = Failed(InternalError(f"cannot convert an image: {type(error).__name__}: {error}").body())
        if self._untold:
            self._say(Told(self._untold))
        self._say(answer)

    def _answer(self, job: Job) -> Answer:
        if isinstance(job, Inherit):
            with disk_full.typed("convert an image", os.path.dirname(job.build.metadata_path)):
                return Built(inherit(job.build, job.below, complete=job.complete))
        if self._source is None:
            place = parse_place(self._start.source)
            self._source = open_source(place, login=self._start.login, plain_http=self._start.plain_http)
        if isinstance(job, Resolve):
            return Found(self._source.resolve())
        assert isinstance(job, Convert)
        return Built(convert(self._source, job.layer, job.directory, job.name, self._tell))

    def _tell(self, count: int) -> None:
        self._untold += count
        now = time.monotonic()
        if self._untold >= TOLD_BYTES or now - self._told_at >= TOLD_S:
            self._say(Told(self._untold))
            self._untold, self._told_at = 0, now

    def _say(self, answer: Answer) -> None:
        data = memoryview(frame(answer))
        while data:
            data = data[os.write(self._output, data) :]


if __name__ == "__main__":
    main()
