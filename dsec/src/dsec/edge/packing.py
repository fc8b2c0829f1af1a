"""Reading what a sandbox has written while the sandbox stands still, and letting it go on as soon as that is read.

While it stands its state is `pausing`, in memory alone: calls that come wait for its turn, and are sent when it runs
again; its time stands still. The journal says `running`, or `paused` where it was that before: a server that takes over
in the middle lets it run, or leaves it paused.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from dsec.drivers.base import Captured
from dsec.store import disk_full
from dsec.store.local import LocalStore
from dsec.store.pack.order import Packing, Upper
from dsec.store.threads import ended
from libdsec.protocol.environment import BuildProgress
from libdsec.protocol.images import ChangeCount, PackedDiff
from libdsec.protocol.lifecycle import Operation, State

from .blocking import News, Progress
from .sandbox import Sandbox

if TYPE_CHECKING:
    from .edge import Edge

AT_ONCE = 4
"""Uppers of one node that are read at the same time: each may take a gigabyte of memory, for a million names."""

Capture = Callable[[], AbstractAsyncContextManager[Captured]]
"""Begins to capture a certain sandbox."""

_T = TypeVar("_T")


@asynccontextmanager
async def captured(edge: Edge, sandbox: Sandbox, doing: str) -> AsyncIterator[Captured]:
    """As `Instance.capture`, by turns with pauses, resumes and the end, and with the state that is true.

    :raises SandboxStateError, SandboxFailedError: it does not run, and is not paused.
    """
    async with sandbox.turn:
        instance = sandbox.require(Operation.PACK, doing)
        with _Standing(edge, sandbox) as standing:
            async with instance.capture() as what:
                if what.since is None:
                    standing.end()
                yield what


class _Standing:
    """The state `pausing` of a sandbox that ran, until it does so again."""

    def __init__(self, edge: Edge, sandbox: Sandbox) -> None:
        self._clock = edge.clock
        self._sandbox = sandbox

    def __enter__(self) -> _Standing:
        self._stands = self._sandbox.move(State.RUNNING, State.PAUSING)
        if self._stands:
            self._sandbox.begin_pause(self._clock.now(), self._clock.monotonic())
        return self

    def end(self) -> None:
        """Again is fine."""
        if self._stands and self._sandbox.move(State.PAUSING, State.RUNNING):
            self._sandbox.end_pause(self._clock.now(), self._clock.monotonic())
        self._stands = False

    def __exit__(self, *_: object) -> None:
        self.end()


async def pack_into(
    store: LocalStore, uppers: Uppers, packing: Packing, capture: Capture, progress: Progress
) -> PackedDiff:
    """The image made, or, where the very same step has made it before, found.

    :raises DSecError: see `dsec.store.pack.pack`; nothing is left, and the sandbox goes on.
    """
    from dsec.store.pack.pack import check, pack  # only packing needs what builds layers

    found = await asyncio.to_thread(check, store, packing)
    if isinstance(found, PackedDiff):
        return found
    return await uppers.read(capture, lambda upper, tell: pack(store, packing, found, upper, tell), progress)


@asynccontextmanager
async def changes_in(
    store: LocalStore, uppers: Uppers, layers: Sequence[str], id_base: int, capture: Capture
) -> AsyncIterator[tuple[ChangeCount, Iterator[bytes]]]:
    """What a sandbox changed over its layers, gathered: how many, and arrays of `Change`.

    :raises CapacityError: there is no room to gather it.
    """
    from dsec.store.pack.changes import read_batches, write_changes

    stack = [store.catalogue.layer(digest).metadata for digest in layers]
    with tempfile.TemporaryFile(dir=store.state_dir) as file:

        def write(upper: Upper, _: Progress) -> ChangeCount:
            with disk_full.typed("list what a sandbox has written", store.state_dir):
                return write_changes(stack, upper, id_base, file)

        count = await uppers.read(capture, write, lambda news: None)
        yield count, read_batches(file)


class Uppers:
    """Reads what sandboxes have written, of `AT_ONCE` at the same time. On the edge's event loop."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(AT_ONCE)
        # of its own, one for each turn: those that the loop has are few, and for what is over soon
        self._threads = ThreadPoolExecutor(AT_ONCE, "dsec-upper")

    async def read(
        self, capture: Capture, work: Callable[[Upper, Progress], _T], progress: Callable[[BuildProgress], None]
    ) -> _T:
        """What `work` returns, which is called in a thread with the upper that is captured. It says when it has read
        that: the sandbox goes on then, and the work as well.

        After a cancel both of its arguments raise; the work takes away what it has made, and only then this ends.
        """
        async with self._turns:
            return await _read(self._threads, capture, work, progress)


async def _read(threads: Executor, capture: Capture, work: Callable[[Upper, Progress], _T], progress: Progress) -> _T:
    loop = asyncio.get_running_loop()
    read: asyncio.Future[None] = loop.create_future()

    def end_reading() -> None:
        if not read.done():
            read.set_result(None)

    with News(progress) as news:
        async with AsyncExitStack() as stack:
            what = await stack.enter_async_context(capture())

            def check() -> None:
                news.check()
                what.check()

            def done() -> None:
                what.check()
                loop.call_soon_threadsafe(end_reading)

            upper = Upper(what.path, what.since, check, done, what.stood_ms)
            working = loop.run_in_executor(threads, work, upper, news.tell)
            try:
                await asyncio.wait((working, read), return_when=asyncio.FIRST_COMPLETED)
                await stack.aclose()
                await asyncio.wait((working,))
            finally:
                news.canceled = True
                await ended(working)
    return working.result()
