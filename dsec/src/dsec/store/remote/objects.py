"""The objects of a shared store: bounded requests, and failures in words.

Each attempt has a deadline that grows with its bytes, a request is tried a few times, and no more than `CONCURRENCY`
are under way at once. A request that is given up ends here, whatever the file system or network below still does.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import obstore
from obstore import exceptions as failures

from libdsec.protocol.errors import (
    CapacityError,
    DSecError,
    IntegrityError,
    UnavailableError,
    UnsupportedOperationError,
)

from . import answers

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult
    from obstore.store import ObjectStore

T = TypeVar("T")

CONCURRENCY = 16
"""Requests under way at once."""

_LISTED_BYTES = 512
"""Of an object in a list, about."""


@dataclass(frozen=True)
class Patience:
    """How long a store may take."""

    attempt_s: float = 10.0
    """For one attempt, whatever its size."""
    bytes_per_s: float = 1024 * 1024
    """The attempt has the time in addition that its bytes take at this rate."""
    attempts: int = 4
    backoff_s: float = 0.2
    """Before the second attempt; twice as long before each further one, and up to half as long more, by chance."""


class Objects:
    """Safe from several event loops."""

    def __init__(
        self,
        store: ObjectStore,
        url: str,
        *,
        writable: bool = True,
        directory: str | None = None,
        patience: Patience | None = None,
    ) -> None:
        """`url` is for messages and for what the catalogue remembers: without secrets. `directory` is where the
        objects lie as files, if they do."""
        self.url = url
        self.directory = directory
        self._mounted = directory is not None and os.path.ismount(directory)
        self._scheme = "" if directory is not None else urlsplit(url).scheme
        self._writable = writable
        self._creates = directory is not None
        self._store = store
        self._patience = patience or Patience()
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    def require_writable(self, doing: str) -> None:
        """:raises UnsupportedOperationError: a store that is only read."""
        if not self._writable:
            raise UnsupportedOperationError(
                f"cannot {doing}: the shared store {self.url} is read by HTTP, which cannot write; publish to the "
                "store behind it",
                store=self.url,
            )

    async def size(self, path: str) -> int | None:
        """Bytes of an object; None where there is none."""

        async def ask(_: asyncio.Timeout) -> int:
            return (await obstore.head_async(self._store, path))["size"]

        return await self._tried(f"look for {path}", 0, ask)

    async def get(self, path: str, limit: int) -> bytes | None:
        """A whole object; None where there is none.

        :raises IntegrityError: it has more than `limit` bytes.
        """

        async def ask(time: asyncio.Timeout) -> bytes:
            found = await obstore.get_async(self._store, path)
            size = found.meta["size"]
            if size > limit:
                raise IntegrityError(
                    f"cannot use {path} of {self.url}: it has {size} bytes, more than {limit}",
                    store=self.url,
                    path=path,
                )
            time.reschedule((time.when() or 0.0) + size / self._patience.bytes_per_s)
            content = bytes(await found.bytes_async() if self.directory is not None else await _come(found, size))
            if len(content) != size:
                raise OSError(f"{len(content)} bytes came instead of {size}")
            return content

        return await self._tried(f"read {path}", 0, ask)

    async def get_range(self, path: str, start: int, length: int) -> memoryview:
        """Exactly these bytes of an object.

        :raises IntegrityError: there is no such object, or it ends before.
        """

        async def ask(_: asyncio.Timeout) -> memoryview:
            try:
                if self.directory is not None:
                    return memoryview(await obstore.get_range_async(self._store, path, start=start, length=length))
                asked: GetOptions = {"range": (start, start + length)}
                return await _come(await obstore.get_async(self._store, path, options=asked), length)
            except failures.GenericError:
                # that the object ends before the range each store says in words of its own: then its size says so
                if (await obstore.head_async(self._store, path))["size"] < start + length:
                    return memoryview(b"")
                raise

        found = await self._tried(f"read {path}", length, ask)
        if found is None:
            raise IntegrityError(f"cannot read {path} of {self.url}: it is missing", store=self.url, path=path)
        if len(found) != length:
            raise IntegrityError(
                f"cannot read {path} of {self.url}: it ends before byte {start + length}", store=self.url, path=path
            )
        return found

    async def list(self, prefix: str, limit: int) -> list[str]:
        """Names of all objects below `prefix`, a directory, in no order.

        :raises UnsupportedOperationError: a store that is read by HTTP.
        :raises CapacityError: there are more than `limit`.
        """
        if not self._writable:
            raise UnsupportedOperationError(
                f"cannot list the shared store {self.url}: HTTP has no lists; name the image", store=self.url
            )

        def check(count: int) -> None:
            if count > limit:
                raise CapacityError(f"cannot list {prefix} of {self.url}: it has more than {limit} objects")

        async def ask(_: asyncio.Timeout) -> list[str]:
            if self.directory is not None:
                await self._require_directory(f"list {prefix}")
                return await asyncio.to_thread(_files_below, self.directory, prefix, check)
            found: list[str] = []
            async for some in obstore.list(self._store, prefix, chunk_size=1000):
                found += [each["path"] for each in some]
                check(len(found))
            return found

        return await self._tried(f"list {prefix}", limit * _LISTED_BYTES, ask) or []

    async def put(self, path: str, content: bytes | bytearray, *, replace: bool = False) -> bool:
        """Write an object, whole or not at all. False: there is one of that name, which stays unless `replace`.

        :raises CapacityError: the store is full.
        """
        self.require_writable(f"write {path}")

        async def ask(_: asyncio.Timeout) -> bool:
            await self._require_directory(f"write {path}")
            try:
                await obstore.put_async(
                    self._store, path, content, mode="overwrite" if replace else "create", use_multipart=False
                )
            except (failures.AlreadyExistsError, failures.PreconditionError) as error:
                # what was to be replaced and was not is no success
                if replace or not answers.is_there(error):
                    raise
                return False
            if self.directory is not None:
                await asyncio.to_thread(_sync, os.path.join(self.directory, path))
            return True

        written = await self._tried(f"write {path}", len(content), ask)
        if written is None:
            raise UnavailableError(f"cannot write {path}: {self.url} has no such place", store=self.url)
        return written

    async def require_creation(self, path: str, limit: int) -> None:
        """See whether the store keeps an object that is created anew: with one that is there, and that would be
        replaced by itself. Asked once; a directory keeps it.

        :raises UnsupportedOperationError: it does not, so that of two publishers of a name the second would win.
        """
        if self._creates or (content := await self.get(path, limit)) is None:
            return
        if await self.put(path, content):
            raise UnsupportedOperationError(
                f"cannot publish in {self.url}: its server replaces objects that it is asked to create only where "
                "there is none (If-None-Match: *), so that no name would be safe there; use a server, or a release of "
                "it, that knows that condition",
                store=self.url,
            )
        self._creates = True

    async def _tried(self, doing: str, size: int, ask: Callable[[asyncio.Timeout], Awaitable[T]]) -> T | None:
        """None: there is no such object."""
        patience = self._patience
        attempt_s = patience.attempt_s + size / patience.bytes_per_s
        pause = patience.backoff_s
        for attempt in range(1, patience.attempts + 1):
            try:
                async with self._turn(), asyncio.timeout(attempt_s) as time:
                    return await ask(time)
            except FileNotFoundError as error:
                await self._require_directory(doing)
                if answers.is_missing(error):
                    return None
                failure: DSecError = self._in_words(doing, error)
            except TimeoutError:
                failure = UnavailableError(
                    f"cannot {doing}: {self.url} did not answer within {attempt_s:.0f} s", store=self.url
                )
            except Exception as error:
                if not answers.is_failure(error):
                    raise
                failure = self._in_words(doing, error)
            if attempt == patience.attempts:
                raise failure
            await asyncio.sleep(pause * random.uniform(1.0, 1.5))
            pause *= 2
        raise AssertionError("unreachable")

    async def _require_directory(self, doing: str) -> None:
        """A directory that has gone, or whose share was unmounted, is no empty store, and is not made anew.

        :raises UnavailableError: it has gone.
        """
        if self.directory is not None and not await asyncio.to_thread(self._is_there, self.directory):
            raise UnavailableError(
                f"cannot {doing}: the shared store {self.url} is not there any more; mount the share it lies on",
                store=self.url,
            )

    def _is_there(self, directory: str) -> bool:
        return os.path.ismount(directory) if self._mounted else os.path.isdir(directory)

    def _in_words(self, doing: str, error: Exception) -> DSecError:
        """What is worth another attempt is returned; what is not, raised."""
        answer = answers.read(error, self._scheme)
        typed = answer.typed(f"cannot {doing}: {self.url}: {answer.words}", store=self.url)
        if not answer.again:
            raise typed from error
        return typed

    def _turn(self) -> asyncio.Semaphore:
        return self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(CONCURRENCY))


def _files_below(directory: str, prefix: str, check: Callable[[int], None]) -> list[str]:
    """Of a store that is a directory. obstore lists nothing where one file has a name that no object can have; here
    such a file is left out."""

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    found: list[str] = []
    for where, _, names in os.walk(os.path.join(directory, prefix), onerror=failed):
        paths = (os.path.relpath(os.path.join(where, name), directory) for name in names)
        found += [path for path in paths if path.isprintable()]
        check(len(found))
    return found


async def _come(found: GetResult, size: int) -> memoryview:
    """What comes of an answer over a network, which may be less than `size` bytes.

    :raises OSError: more comes, whatever length was told before.
    """
    parts: list[memoryview] = []
    async for part in found.stream(min_chunk_size=max(size, 1)):
        parts.append(memoryview(part))
        if (came := sum(map(len, parts))) > size:
            raise OSError(f"{came} bytes came instead of {size}, and perhaps more")
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


def _sync(path: str) -> None:
    """A file and its name, onto the disk."""
    for each in (path, os.path.dirname(path)):
        descriptor = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
