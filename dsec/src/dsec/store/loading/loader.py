"""The loader of a node: mounts layers whether or not their data is here, fetches it when it is read or asked for."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from functools import partial
from typing import Protocol

import structlog

from dsec.linux import KernelError, fanotify
from dsec.linux.mounts import erofs_method, mount_erofs
from dsec.store.mounts import mount_checked
from dsec.store.records import LayerRecord, is_remote
from dsec.store.verify import check_metadata, check_whole
from libdsec.protocol.errors import DSecError, ImageNotFoundError, IntegrityError, UnavailableError
from libdsec.protocol.images import DataSource

from .base import LayerCounts, Sources
from .bounds import Bounds
from .cache import evict, is_whole, present_bytes
from .counts import Counts
from .looping import LoopThread
from .opened import Opened, OpenedLayers
from .pending import Taken
from .precontent import PreContent
from .trace import RECORD_S

GROUP_KEY = "pre-content"
"""Of the group's descriptor, where the fork server has it."""
PROGRESS_S = 0.25
FINISH_S = 120.0
"""For the last bytes of a layer to be on the disk."""

_log = structlog.get_logger("dsec.loading")


class DescriptorKeeper(Protocol):
    """What outlives this process: the fork server's keeping of descriptors."""

    async def hold(self, key: str, descriptor: int) -> None: ...

    async def take(self, key: str) -> int | None: ...


class Loader:
    """A `base.LayerLoader`. Its threads run from its making to `close`."""

    def __init__(
        self,
        *,
        sources: Sources,
        locate: Callable[[str], LayerRecord],
        unless_kept: Callable[[str, Callable[[], int]], int | None],
        pending_path: str,
        graves: str,
        way: DataSource = "auto",
        bounds: Bounds | None = None,
    ) -> None:
        """`locate` is `Catalogue.layer`, `unless_kept` that of `LocalStore`; `pending_path` a file that lives as long
        as the fork server may; `graves` a directory on the layers' file system that is emptied at a start."""
        self._sources, self._locate, self._way = sources, locate, way
        self._unless_kept = unless_kept
        self._pending_path, self._graves = pending_path, graves
        self._thread = LoopThread("loading")
        self._pool = ThreadPoolExecutor(8, "loading-files")
        self._opened = OpenedLayers(self._thread, bounds or Bounds(), sources.open_source, self._pool.submit)
        self._events: PreContent | None = None
        self._books = threading.Lock()
        self._uses: Counter[str] = Counter()
        self._mounted: set[str] = set()
        self._ways: dict[str, str] = {}

    async def attach(self, keeper: DescriptorKeeper) -> None:
        """Take over the group that the fork server holds, or have it hold a new one: before anything is mounted. Where
        this kernel has no such groups, or the layers' file system no such events, layers are fetched whole."""
        group = await keeper.take(GROUP_KEY)
        fresh = group is None
        if group is None:
            if self._way not in ("auto", "pre-content"):
                return
            try:
                group = _open_group(self._graves)
            except OSError as error:
                _log.warning("layers cannot be read on demand", error=str(error))
                return
            try:
                await keeper.hold(GROUP_KEY, group)
            except DSecError as error:
                # with nobody to hold it when this process dies, readers would see zeros
                _log.error("layers cannot be read on demand: the group is held by nobody else", error=str(error))
                os.close(group)
                return
        await asyncio.to_thread(self.use_group, group, fresh=fresh)

    def use_group(self, group: int, *, fresh: bool) -> None:
        """As `attach`, with a group that somebody else holds too."""
        self._events = self._opened.events = PreContent(group, self._pending_path)
        taken = self._events.inherit(fresh=fresh)
        self._events.start(self._is_there, self._on_event, self._opened.provokes)
        for event in taken:
            self._pool.submit(self._answer_inherited, self._events, event)

    def mount(self, layer: LayerRecord) -> int:
        """See `LayerLoader.mount`."""
        with self._opened.lock(layer.digest):
            if is_whole(layer):
                return self._mount_whole(layer)
        with self._in_use(layer):
            check_metadata(layer)
            for way in self._possible(layer):
                mount = way()
                if mount is not None:
                    return mount
        raise UnavailableError(
            f"cannot have the data of layer {layer.digest} by {self._way}: this store or kernel has no such way",
            digest=layer.digest,
        )

    def adopt(self, digest: str) -> None:
        """See `LayerLoader.adopt`."""
        self._mounted.add(digest)

    def unmounted(self, digest: str) -> None:
        """See `LayerLoader.unmounted`."""
        opened = self._opened.get(digest)
        self._mounted.discard(digest)
        try:
            layer = opened.cache.layer if opened is not None else self._locate(digest)
        except ImageNotFoundError:
            return  # removed, and its marks went with its files
        with self._opened.lock(digest):
            self._close_unused(layer)

    def fetch_all(self, layers: Sequence[LayerRecord], progress: Callable[[int], None]) -> None:
        """See `LayerLoader.fetch_all`."""
        done = 0
        for layer in layers:
            if not is_whole(layer):
                with self._in_use(layer):
                    self._fetch(layer, lambda size, before=done: progress(before + size))  # type: ignore[misc]
            done += layer.data_bytes
            progress(done)

    def verify(self, layer: LayerRecord) -> None:
        """See `LayerLoader.verify`."""
        if is_whole(layer):
            check_whole(layer)
            return
        check_metadata(layer)
        with self._in_use(layer), self._opened.lock(layer.digest):
            opened = self._opened.open(layer) if os.path.exists(layer.data) else None
            wrong = [] if opened is None or opened.closed else opened.cache.check()
        if wrong:
            raise IntegrityError(
                f"chunk {wrong[0]} of {layer.data} does not match; it will be fetched anew",
                digest=layer.digest,
                chunk=wrong[0],
            )

    def evict(self, layer: LayerRecord) -> int | None:
        """See `LayerLoader.evict`."""
        with self._opened.lock(layer.digest):
            with self._books:
                if self._uses[layer.digest] or layer.digest in self._mounted:
                    return None
            self._opened.close_layer(layer)
            grave = os.path.join(self._graves, secrets.token_hex(12))
            return self._unless_kept(layer.digest, lambda: evict(layer, grave))

    def stats(self, layer: LayerRecord) -> LayerCounts:
        opened = self._opened.get(layer.digest)
        counts = Counts(layer.directory) if opened is None else opened.counts
        present = present_bytes(layer) if opened is None else opened.cache.present_bytes
        return LayerCounts(
            self._ways.get(layer.digest) or counts.source or self._likely(layer),
            present,
            counts.fetched_bytes,
            counts.requests,
            counts.reads_waited,
            counts.quantile(0.5),
            counts.quantile(0.99),
            counts.errors,
        )

    def _likely(self, layer: LayerRecord) -> str:
        """How a layer that was not mounted yet will be read, as far as that is known."""
        if not is_remote(layer):
            return "local"
        if self._way != "auto":
            return self._way
        return "prefetch" if self._events is None else "pre-content"

    def close(self) -> None:
        """See `LayerLoader.close`."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._events is not None:
            self._events.stop()
        self._thread.close()
        if self._events is not None:
            self._events.close()
        self._opened.close()

    def _possible(self, layer: LayerRecord) -> Iterator[Callable[[], int | None]]:
        if self._way in ("auto", "direct"):
            yield partial(self._mount_direct, layer)
        if self._way in ("auto", "pre-content"):
            yield partial(self._mount_marked, layer)
        if self._way in ("auto", "prefetch"):
            yield partial(self._mount_fetched, layer)

    def _mount_direct(self, layer: LayerRecord) -> int | None:
        path = self._sources.location(layer)
        if path is None:
            return None
        try:
            if os.stat(path).st_size != layer.data_bytes:
                raise IntegrityError(f"cannot mount layer {layer.digest}: {path} has not {layer.data_bytes} bytes")
            mount = mount_erofs(layer.metadata, path, label=layer.digest)
        except OSError as error:
            _log.warning("a layer cannot be read from the store's file", layer=layer.digest, error=str(error))
            return None
        self._ways[layer.digest] = "direct"
        return mount

    def _mount_marked(self, layer: LayerRecord) -> int | None:
        if self._events is None or erofs_method(layer.directory) != "files":
            return None
        with self._opened.lock(layer.digest):
            if not is_whole(layer):
                opened = self._opened.open(layer)
                # opening a complete one makes it whole
                if not opened.closed:
                    opened.counts.source = self._ways[layer.digest] = "pre-content"
                    first = layer.digest not in self._mounted
                    self._mounted.add(layer.digest)
                    try:
                        mount = mount_erofs(layer.metadata, layer.data, label=layer.digest, method="files")
                    except KernelError as error:
                        # sandboxes of an earlier fork server go on with the mount that was made for that one
                        if first:
                            self._mounted.discard(layer.digest)
                        raise IntegrityError(f"cannot mount layer {layer.digest}: {error}") from error
                    self._thread.loop.call_soon_threadsafe(self._begin_start, opened)
                    return mount
            return self._mount_whole(layer)

    def _mount_fetched(self, layer: LayerRecord) -> int:
        self._fetch(layer, lambda _: None)
        self._ways[layer.digest] = "prefetch"
        with self._opened.lock(layer.digest):
            return self._mount_whole(layer)

    def _mount_whole(self, layer: LayerRecord) -> int:
        """With the layer's lock held."""
        mount = mount_checked(layer)
        self._mounted.add(layer.digest)
        return mount

    def _begin_start(self, opened: Opened) -> None:
        """On the loop: sandboxes begin to read."""
        opened.filling.begin_start()
        digest = opened.cache.layer.digest
        self._thread.loop.call_later(RECORD_S, lambda: self._pool.submit(self._opened.save, digest))

    def _fetch(self, layer: LayerRecord, progress: Callable[[int], None]) -> None:
        with self._opened.lock(layer.digest):
            if is_whole(layer):
                return
            opened = self._opened.open(layer)
            opened.counts.source = opened.counts.source or "prefetch"
        filling = self._thread.submit(opened.filling.fill())
        try:
            _await(filling, lambda: progress(opened.cache.present_bytes))
        except CancelledError:
            pass  # it was closed: because all of it has come, or let go of; `whole` says which
        finally:
            filling.cancel()
        late = time.monotonic() + FINISH_S

        def finishing() -> None:
            progress(layer.data_bytes)
            if time.monotonic() > late:
                raise UnavailableError(
                    f"cannot fetch layer {layer.digest}: the disk took more than {FINISH_S:g} s", digest=layer.digest
                )

        _await(opened.whole, finishing)

    @contextlib.contextmanager
    def _in_use(self, layer: LayerRecord) -> Iterator[None]:
        """Its data is not evicted meanwhile, and its files are closed afterwards if nobody else uses them."""
        with self._books:
            self._uses[layer.digest] += 1
        try:
            yield
        finally:
            with self._books:
                self._uses[layer.digest] -= 1
                if not self._uses[layer.digest]:
                    del self._uses[layer.digest]
            with self._opened.lock(layer.digest):
                self._close_unused(layer)

    def _close_unused(self, layer: LayerRecord) -> None:
        if layer.digest not in self._mounted and not self._uses[layer.digest]:
            self._opened.close_layer(layer)

    def _is_there(self, digest: str, event: fanotify.Event) -> bool:
        """In the thread that reads events. Most reads are of what is there: that it was read is told later."""
        opened = self._opened.get(digest)
        if opened is None:
            return False
        chunks = opened.cache.chunks.of_range(event.offset, event.length)
        if not opened.cache.present.has_all(*chunks):
            return False
        opened.note(self._thread.loop, chunks)
        return True

    def _on_event(self, digest: str, event: fanotify.Event) -> None:
        """In the thread that reads events."""
        if self._opened.take_provoked(digest, event.descriptor, event.pid):
            return
        assert self._events is not None
        answer = partial(self._events.answer, event.descriptor)
        self._thread.loop.call_soon_threadsafe(self._read, digest, event.offset, event.length, answer)

    def _read(self, digest: str, offset: int, count: int, answer: Callable[[int], None]) -> None:
        """On the loop: somebody reads a layer."""
        opened = self._opened.get(digest)
        if opened is not None and not opened.closed:
            opened.filling.read(offset, count, answer)
        else:
            self._pool.submit(self._read_unopened, digest, offset, count, answer)

    def _read_unopened(self, digest: str, offset: int, count: int, answer: Callable[[int], None]) -> None:
        """One that an earlier process has mounted, or that has just become whole."""
        try:
            layer = self._locate(digest)
            with self._opened.lock(digest):
                if not is_whole(layer):
                    self._mounted.add(digest)
                    opened = self._opened.open(layer)
                    if not opened.closed:
                        filling = opened.filling
                        self._thread.loop.call_soon_threadsafe(filling.read, offset, count, answer)
                        return
                elif self._events is not None:
                    # whoever made it whole died before its mark was gone
                    self._events.unmark(layer)
        except (DSecError, OSError) as error:
            _log.error("a read was refused", layer=digest, error=str(error))
            answer(errno.EIO)
            return
        answer(0)

    def _answer_inherited(self, events: PreContent, taken: Taken) -> None:
        self._read_unopened(
            taken.digest, taken.offset, taken.length, partial(events.answer_inherited, taken.descriptor)
        )


def _open_group(directory: str) -> int:
    """:raises OSError: there are no such events here; a tmpfs has none, for one."""
    group = fanotify.open_group()
    path = os.path.join(directory, secrets.token_hex(12))
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            fanotify.mark(group, path)
        finally:
            os.unlink(path)
    except BaseException:
        os.close(group)
        raise
    return group


def _await(work: Future[None], turn: Callable[[], None]) -> None:
    """Until it is done; `turn` is called now and then, and what it raises ends the wait."""
    while True:
        try:
            work.result(PROGRESS_S)
            return
        except LateError:
            if work.done():
                raise
            turn()
