"""The child processes of one pull, as the pull sees them.

Converting takes a processor for seconds and a silent registry takes patience: neither is for the process that all
sandboxes of a node depend on, and a child can be ended in the middle of either.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Final

from libdsec.protocol.errors import UnavailableError

from .messages import Answer, Frames, Job, Start, decode_answer, frame

END_S: Final = 10.0
WRITE_S: Final = 30.0
"""For a child to take a job; it reads at once whatever else it does."""


class Worker:
    """One child; `busy` while it has a job."""

    def __init__(self, start: Start) -> None:
        """:raises UnavailableError: no child can be made."""
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dsec.store.oci.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise UnavailableError(f"cannot start a process to convert an image: {error.strerror}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self.output = self._process.stdin, self._process.stdout
        os.set_blocking(self._input.fileno(), False)
        self._frames = Frames()
        self.busy = False
        try:
            self._write(start)
        except BaseException:
            self.end()
            raise

    def give(self, job: Job) -> None:
        self.busy = True
        self._write(job)

    def read(self) -> list[Answer]:
        """What it said; blocks until it says something.

        :raises UnavailableError: it has ended.
        """
        data = os.read(self.output.fileno(), 1 << 20)
        if not data:
            raise self._ended()
        return [decode_answer(payload) for payload in self._frames.feed(data)]

    def end(self) -> None:
        """Again is fine."""
        self._process.kill()
        self._process.wait(END_S)
        self._input.close()
        self.output.close()

    def _write(self, job: Job) -> None:
        data = memoryview(frame(job))
        descriptor = self._input.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        deadline = time.monotonic() + WRITE_S
        while data:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise UnavailableError(f"cannot convert an image: the process for it takes no job for {WRITE_S:g} s")
            try:
                data = data[os.write(descriptor, data) :]
            except BrokenPipeError:
                raise self._ended() from None

    def _ended(self) -> UnavailableError:
        try:
            status = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return UnavailableError(
                f"cannot convert an image: the process for it says no more, and lives after {END_S:g} s"
            )
        how = f"ended by signal {-status}" if status < 0 else f"ended with {status}"
        return UnavailableError(f"cannot convert an image: the process for it {how}; the server's log may say why")


class Crew:
    """The children of one pull: begun when there is work, ended with the pull.

    `slots` bounds the jobs of all pulls of a node together.
    """

    def __init__(self, start: Start, slots: threading.Semaphore) -> None:
        self._start = start
        self._slots = slots
        self._held = 0
        self._workers: list[Worker] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as stack:
            stack.callback(self._free_all)
            for worker in self._workers:
                stack.callback(worker.end)

    def ask(self, job: Job) -> None:
        """A question of its own, which may take as long as a registry is silent: the jobs of others do not wait."""
        self._begin(job)

    def try_give(self, job: Job, *, worth_another: bool) -> Worker | None:
        """Who does it now, None where all that may be are busy. Another child is begun where that is worth it."""
        if self._workers and not worth_another and all(worker.busy for worker in self._workers):
            return None
        if not self._slots.acquire(blocking=False):
            return None
        self._held += 1
        return self._begin(job)

    def _begin(self, job: Job) -> Worker:
        worker = next((worker for worker in self._workers if not worker.busy), None)
        if worker is None:
            worker = Worker(self._start)
            self._workers.append(worker)
        worker.give(job)
        return worker

    def answered(self, worker: Worker) -> None:
        """It has done what it was asked."""
        worker.busy = False

    def done(self, worker: Worker) -> None:
        """It has done its job."""
        worker.busy = False
        self._free()

    def wait(self, seconds: float) -> list[tuple[Worker, Answer]]:
        """What was said within so long."""
        busy = {worker.output.fileno(): worker for worker in self._workers if worker.busy}
        if not busy:
            time.sleep(seconds)
            return []
        poll = select.poll()
        for descriptor in busy:
            poll.register(descriptor, select.POLLIN)
        said = []
        for descriptor, _ in poll.poll(seconds * 1000):
            worker = busy[descriptor]
            said += [(worker, answer) for answer in worker.read()]
        return said

    def _free_all(self) -> None:
        while self._held:
            self._free()

    def _free(self) -> None:
        self._held -= 1
        self._slots.release()
