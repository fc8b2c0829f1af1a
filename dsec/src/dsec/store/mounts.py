"""Layers held by the fork server: each mounted once, however many sandboxes have it.

`acquire` counts up (`claim`) and mounts (`mount`), `release` counts down. A layer that nobody uses stays held, up to a
bound, since the next sandbox most likely wants it again; the one unused longest goes first. All calls are made on one
event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

from dsec.linux import KernelError
from dsec.linux.mounts import mount_erofs
from libdsec.protocol.errors import ConflictError, IntegrityError

from .records import LayerRecord
from .threads import in_thread
from .verify import check_for_mount

Hold = Callable[[str, int], Awaitable[None]]
"""(key, descriptor of a detached mount): the fork server keeps it. The descriptor stays the caller's."""
Drop = Callable[[str], Awaitable[None]]
"""(key): the fork server lets go; `ConflictError` while a sandbox made from it runs."""

MAX_IDLE = 128
THREADS = 32
"""Layers that are mounted at the same time."""


class LayerMounts:
    """What is held and by how many it is used."""

    def __init__(
        self,
        hold: Hold,
        drop: Drop,
        locate: Callable[[str], LayerRecord],
        *,
        max_idle: int = MAX_IDLE,
        mount: Callable[[LayerRecord], int] | None = None,
        adopted: Callable[[str], None] | None = None,
        unmounted: Callable[[str], None] | None = None,
    ) -> None:
        """`locate` is `Catalogue.layer`. `mount`, called in a thread, gives the descriptor of a checked mount;
        `adopted` is told of each that was made before this process; `unmounted`, called in a thread, that nobody has a
        layer's mount any more."""
        self._hold = hold
        self._drop = drop
        self._locate = locate
        self._max_idle = max_idle
        self._mount_layer = mount or mount_checked
        self._adopted = adopted
        self._unmounted = unmounted
        self._users: dict[str, int] = {}
        # of their own: those that the loop has are few, and a mount may wait until all of a layer has come
        self._threads = ThreadPoolExecutor(THREADS, "mount")
        self._held: set[str] = set()
        self._idle: dict[str, None] = {}
        """Held and not used, the one unused longest first."""
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    async def acquire(self, digest: str) -> None:
        """Use a layer: when this returns, the fork server has it, its digest being the key.

        :raises DSecError: as `mount`; it is not used then.
        """
        self.claim(digest)
        try:
            await self.mount(digest)
        except BaseException:
            self._count_down(digest)
            raise

    def claim(self, digest: str) -> None:
        """Count a use of what is still to be mounted: from now on, and until `release`, nobody removes the layer."""
        self._users[digest] = self._users.get(digest, 0) + 1
        self._idle.pop(digest, None)

    async def mount(self, digest: str) -> None:
        """Have the fork server hold a layer that was claimed. One mount at a time a layer: those who come meanwhile
        wait for it.

        :raises ImageNotFoundError: no such layer.
        :raises IntegrityError: its files are not what its digest says, or the kernel takes them for no image.
        """
        if digest in self._held and digest not in self._locks:
            return
        async with _Turn(self._locks, digest):
            if digest not in self._held:
                await self._mount(digest)
                self._held.add(digest)

    async def release(self, digest: str) -> None:
        """End one use. More releases than acquires are an error of the caller (`RuntimeError`)."""
        if self._users.get(digest, 0) < 1:
            raise RuntimeError(f"layer {digest} was released more often than acquired")
        self._count_down(digest)
        if digest not in self._users and digest not in self._held:
            await self.forget(digest)  # its mount went with a fork server
        while len(self._idle) > self._max_idle:
            if not await self.forget(next(iter(self._idle))):
                break

    def adopt(self, held: Iterable[str]) -> None:
        """After a start: what the fork server holds already. Uses are counted by `use`."""
        for digest in held:
            self._held.add(digest)
            if digest not in self._users:
                self._idle[digest] = None
            self._tell_adopted(digest)

    def use(self, digest: str) -> None:
        """Count a use by a sandbox that was made before this process started."""
        self.claim(digest)
        self._tell_adopted(digest)

    def lost(self, digests: Collection[str]) -> None:
        """The fork server no longer holds these, whether they are used or not: the next use mounts them anew."""
        for digest in digests:
            self._held.discard(digest)
            self._idle.pop(digest, None)

    def in_use(self, digest: str) -> bool:
        return digest in self._users

    def users(self, digest: str) -> int:
        """How many sandboxes have a layer."""
        return self._users.get(digest, 0)

    def used(self) -> tuple[str, ...]:
        """Every layer that a sandbox has."""
        return tuple(self._users)

    async def forget(self, digest: str) -> bool:
        """Let go of a layer that nobody uses. False when it is used, here or in the fork server."""
        async with _Turn(self._locks, digest):
            if digest in self._users:
                return False
            if digest not in self._held:
                await self._end(digest)
                return True
            # out of the books first: an acquire that comes during the drop mounts it again, after this turn
            self._idle.pop(digest, None)
            self._held.discard(digest)
            try:
                await self._drop(digest)
            except ConflictError:
                self._held.add(digest)
                if digest not in self._users:
                    self._idle[digest] = None
                return False
            await self._end(digest)
        return True

    def _tell_adopted(self, digest: str) -> None:
        if self._adopted is not None:
            self._adopted(digest)

    async def _end(self, digest: str) -> None:
        """Within the layer's turn, so that nobody mounts it meanwhile."""
        if self._unmounted is not None:
            # also after a cancel: told late, it would end the next mount
            await in_thread(self._threads, self._unmounted, digest)

    def _count_down(self, digest: str) -> None:
        self._users[digest] -= 1
        if not self._users[digest]:
            del self._users[digest]
            if digest in self._held:
                self._idle[digest] = None

    async def _mount(self, digest: str) -> None:
        layer = self._locate(digest)
        mounting = asyncio.get_running_loop().run_in_executor(self._threads, self._mount_layer, layer)
        try:
            mount = await asyncio.shield(mounting)
        except asyncio.CancelledError:
            mounting.add_done_callback(_close_result)
            raise
        try:
            await self._hold(digest, mount)
        finally:
            os.close(mount)


class _Turn:
    """One at a time a layer, and no lock left behind when nobody waits."""

    def __init__(self, locks: dict[str, tuple[asyncio.Lock, int]], digest: str) -> None:
        self._locks = locks
        self._digest = digest

    async def __aenter__(self) -> None:
        lock, waiting = self._locks.get(self._digest, (asyncio.Lock(), 0))
        self._locks[self._digest] = (lock, waiting + 1)
        try:
            await lock.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._locks[self._digest][0].release()
        self._leave()

    def _leave(self) -> None:
        lock, waiting = self._locks[self._digest]
        if waiting == 1:
            del self._locks[self._digest]
        else:
            self._locks[self._digest] = (lock, waiting - 1)


def mount_checked(layer: LayerRecord) -> int:
    """A detached mount of a layer whose metadata was verified.

    :raises IntegrityError: the files are not the layer's, or the kernel takes them for no image.
    """
    check_for_mount(layer)
    try:
        return mount_erofs(layer.metadata, layer.data, label=layer.digest)
    except KernelError as error:
        raise IntegrityError(f"cannot mount layer {layer.digest}: {error}", digest=layer.digest) from error


def _close_result(mounting: asyncio.Future[int]) -> None:
    if not mounting.cancelled() and mounting.exception() is None:
        os.close(mounting.result())
