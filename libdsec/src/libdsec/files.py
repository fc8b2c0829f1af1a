"""The files of a sandbox. They need nothing of its image, not even a shell."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import msgspec

from ._archive import Transfer
from ._arrays import arrays
from ._moving import PROGRESS_TIMEOUT_S, Progress, decoded
from ._steps.track import Begun, Track
from ._transfers import Transfers
from ._transport.streaming import Streaming
from .protocol.errors import ClientClosedError, InvalidArgumentError, PathNotFoundError, WireError
from .protocol.files import (
    FileAnswer,
    FileEvent,
    FileInfo,
    FileListRequest,
    FileMoveRequest,
    FileReadRequest,
    FileRequest,
    FileWatchRequest,
    FileWriteRequest,
)
from .protocol.frames import STDOUT

READ_LIMIT = 64 * 1024 * 1024
"""Bytes that `read` takes into memory unless told otherwise."""

DOWNLOAD_LIMIT = 64 * 1024 * 1024 * 1024
"""Bytes of contents that `download` writes to the local disk unless told otherwise."""

_LIST_BASE = 64 * 1024
_ENTRY_BYTES = 2 * 4096 + 512
"""Of one entry at most: its path, what it points to, and the rest."""

_decode_entries = msgspec.msgpack.Decoder(tuple[FileInfo, ...]).decode
_decode_events = msgspec.msgpack.Decoder(tuple[FileEvent, ...]).decode


class Listing(tuple[FileInfo, ...]):
    """The entries of a directory, sorted by path. `truncated` says whether the limit left some out."""

    truncated: bool = False


class Files:
    """File operations as the sandbox's default user, or as the one of `as_user`.

    Paths are absolute or relative to the sandbox's working directory.
    :raises PathNotFoundError: from all of them: no such path.
    :raises FileOperationError: from all of them: the sandbox's file system refused; `details` has path and errno.
    """

    def __init__(self, track: Track, sandbox: str, user: str | None = None) -> None:
        self._track = track
        self._sandbox = sandbox
        self._user = user
        self._transfers = Transfers(track, sandbox, user)

    def as_user(self, user: str | int) -> Files:
        """The same files with another user's rights."""
        return Files(self._track, self._sandbox, str(user))

    async def read(self, path: str, *, offset: int = 0, length: int | None = None, limit: int = READ_LIMIT) -> bytes:
        """The contents of a file, or `length` bytes of them from `offset`.

        :raises InvalidArgumentError: more than `limit` bytes; `download` has no such limit.
        """
        wanted = limit + 1 if length is None else length
        if wanted > limit + 1:
            raise InvalidArgumentError(f"cannot read {length} bytes into memory: the limit is {limit}", field="length")
        answer = await self._track.collect(
            "file.read",
            FileReadRequest(self._sandbox, path, self._user, offset, wanted),
            timeout=PROGRESS_TIMEOUT_S,
            extend=True,
            bound=wanted,
            repeatable=True,
        )
        if len(answer.stdout) > limit:
            raise InvalidArgumentError(
                f"cannot read {path!r} into memory: it has more than {limit} bytes; use download, or read a part of it"
            )
        return answer.stdout

    async def read_text(self, path: str, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The contents of a text file."""
        return (await self.read(path)).decode(encoding, errors)

    async def write(
        self,
        path: str,
        data: bytes | str,
        *,
        mode: int = 0o644,
        parents: bool = False,
        exclusive: bool = False,
        key: str | None = None,
    ) -> int:
        """Replace the contents of a file, or make it; nobody sees half of it. The number of bytes written.

        :param parents: make missing directories above it.
        :param exclusive: fail when it exists.
        """
        return await self._write(path, data, mode, parents, exclusive, False, key)

    async def append(
        self, path: str, data: bytes | str, *, mode: int = 0o644, parents: bool = False, key: str | None = None
    ) -> int:
        """Add to the end of a file, or make it. The number of bytes added."""
        return await self._write(path, data, mode, parents, False, True, key)

    async def stat(self, path: str, *, follow: bool = False) -> FileInfo:
        """What is at a path. A symlink itself, or with `follow` what it points to."""
        _, info = await self._look(path, follow)
        return info

    async def exists(self, path: str) -> bool:
        """Whether anything is at a path, be it a symlink that points nowhere."""
        try:
            await self.stat(path)
        except PathNotFoundError:
            return False
        return True

    async def list(self, path: str, *, recursive: bool = False, limit: int = 100_000) -> Listing:
        """The entries of a directory, at most `limit`; with `recursive` all below it, paths relative to it."""
        request = FileListRequest(self._sandbox, path, self._user, recursive, limit)
        answer = await self._track.collect(
            "file.list",
            request,
            timeout=PROGRESS_TIMEOUT_S,
            extend=True,
            bound=_LIST_BASE + limit * _ENTRY_BYTES,
            repeatable=True,
        )
        entries: list[FileInfo] = []
        for piece in arrays(answer.frames):
            entries += decoded(_decode_entries, piece)
            if len(entries) > limit:
                raise WireError(f"cannot accept more than the {limit} entries asked for")
        listing = Listing(sorted(entries, key=lambda entry: entry.path))
        listing.truncated = answer.value.truncated
        return listing

    async def mkdir(self, path: str, *, parents: bool = False, key: str | None = None) -> None:
        """Make a directory; with `parents` also those above it, and it may exist."""
        await self._call("file.mkdir", FileRequest(self._sandbox, path, self._user, recursive=parents), key=key)

    async def remove(self, path: str, *, recursive: bool = False, key: str | None = None) -> None:
        """Remove a file, a symlink itself, or an empty directory; with `recursive` a directory and all below it."""
        await self._call("file.remove", FileRequest(self._sandbox, path, self._user, recursive=recursive), key=key)

    async def move(self, path: str, to: str, *, key: str | None = None) -> None:
        """Rename, replacing a file at `to`."""
        await self._call("file.move", FileMoveRequest(self._sandbox, path, to, self._user), key=key)

    async def upload(
        self, local: str | os.PathLike[str], path: str, *, parents: bool = True, progress: Progress | None = None
    ) -> Transfer:
        """Copy a local file to `path`, or what is below a local directory into the directory `path`.

        `progress` is called with the number of bytes sent so far. Of a directory the times of its files go along, as
        `make` and others need them, and are part of what a command log compares: where a program that runs again makes
        the directory anew, it must set them (`os.utime`), or the upload is a `ReplayDivergedError`.
        """
        source = os.fspath(local)
        if await asyncio.to_thread(os.path.isdir, source):
            return await self._transfers.upload_directory(source, path, progress)
        return await self._transfers.upload_file(source, path, parents, progress)

    async def download(
        self,
        path: str,
        local: str | os.PathLike[str],
        *,
        limit: int = DOWNLOAD_LIMIT,
        progress: Progress | None = None,
    ) -> Transfer:
        """Copy a file to the local path, or what is below a directory into the local directory, made if missing.

        Nothing outside the local path is touched whatever the sandbox sends. Devices, sockets and links that lead out
        of the directory are left out, and counted in the answer.
        :raises QuotaExceededError: more than `limit` bytes of contents.
        :raises InvalidArgumentError: a device, pipe or socket.
        """
        looked, info = await self._look(path, True)
        if info.type == "directory":
            return await self._transfers.download_directory(looked, path, os.fspath(local), limit, progress)
        if info.type != "file":
            # a device has no end, and a name that an agent made a link to one would fill our disk
            raise InvalidArgumentError(
                f"cannot download {path!r}: it is neither a file nor a directory, but of type {info.type}", field="path"
            )
        return await self._transfers.download_file(looked, path, os.fspath(local), info.mode, limit, progress)

    async def archive(
        self,
        path: str,
        local: str | os.PathLike[str],
        *,
        limit: int = DOWNLOAD_LIMIT,
        progress: Progress | None = None,
    ) -> Transfer:
        """Write what is below a directory as a tar to a local file."""
        return await self._transfers.archive(path, os.fspath(local), limit, progress)

    async def extract(self, local: str | os.PathLike[str], path: str, *, progress: Progress | None = None) -> Transfer:
        """Unpack a local tar file, not compressed, into the directory `path`, made if missing."""
        return await self._transfers.extract(os.fspath(local), path, progress)

    def watch(self, path: str, *, recursive: bool = False) -> Watch:
        """Changes of a file or directory as they happen: `async with files.watch(path) as events`."""
        return Watch(self._track, FileWatchRequest(self._sandbox, path, self._user, recursive))

    async def _write(
        self, path: str, data: bytes | str, mode: int, parents: bool, exclusive: bool, append: bool, key: str | None
    ) -> int:
        request = FileWriteRequest(self._sandbox, path, self._user, append, mode, parents, exclusive)
        content = data.encode() if isinstance(data, str) else data
        answer = await self._track.collect(
            "file.write", request, timeout=PROGRESS_TIMEOUT_S, extend=True, stdin=content, key=key
        )
        size: int = answer.value.size
        return size

    async def _look(self, path: str, follow: bool) -> tuple[Begun, FileInfo]:
        request = FileRequest(self._sandbox, path, self._user, follow=follow)
        begun = await self._track.begin("file.stat", request)
        answer: FileAnswer = (await self._track.end(begun, PROGRESS_TIMEOUT_S, repeatable=True)).value
        if answer.info is None:
            raise WireError("cannot read the answer of file.stat: it has no entry")
        return begun, answer.info

    async def _call(self, method: str, request: msgspec.Struct, key: str | None = None) -> FileAnswer:
        answer: FileAnswer = await self._track.call(method, request, timeout=PROGRESS_TIMEOUT_S, key=key)
        return answer


class Watch:
    """Changes of a path, from when its `async with` was entered."""

    def __init__(self, track: Track, request: FileWatchRequest) -> None:
        self._track = track
        self._request = request
        self._exchange: Streaming | None = None
        self._first: bytes | None = None

    async def __aenter__(self) -> Self:
        exchange = await self._track.stream("file.watch", self._request, (STDOUT,))
        try:
            # the first piece says that the watch is in place: nothing that happens from here on is missed
            self._first = await exchange.incoming[STDOUT].get(PROGRESS_TIMEOUT_S)
        except BaseException as error:
            exchange.abandon(error if isinstance(error, Exception) else ClientClosedError("cannot watch: given up"))
            raise
        self._exchange = exchange
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._exchange is not None:
            self._exchange.abandon(ClientClosedError("cannot watch further: its `async with` was left"))

    async def __aiter__(self) -> AsyncIterator[FileEvent]:
        if self._exchange is None:
            raise ClientClosedError("cannot watch: use `async with`")
        chunk, self._first = self._first, b"\x90"
        while chunk is not None:
            for event in decoded(_decode_events, chunk):
                yield event
            chunk = await self._exchange.incoming[STDOUT].get()
