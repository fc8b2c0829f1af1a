"""Between local files and a sandbox's, in bounded memory: bytes go on as the other side takes them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from ._archive import ZEROS, Transfer, pack, unpack
from ._pipe import ThreadPipe
from ._transport.channel import Channel
from ._transport.codec import codec
from ._transport.streaming import Streaming
from .protocol.errors import ClientClosedError, FileOperationError, QuotaExceededError, WireError
from .protocol.files import FileAnswer, FileExtractRequest, FileReadRequest, FileRequest, FileWriteRequest
from .protocol.frames import STDOUT
from .protocol.ids import new_token

Progress = Callable[[int], None]
"""Called with the number of bytes moved so far."""

PROGRESS_TIMEOUT_S = 90.0
"""How long a file operation may show no progress; the node gives up after 60 s and says why."""

_PIECE = 256 * 1024

T = TypeVar("T")


def decoded(decode: Callable[[bytes], T], chunk: bytes) -> T:
    """:raises WireError: not what it should be."""
    try:
        return decode(chunk)
    except msgspec.DecodeError as error:
        raise WireError(f"cannot read what a file operation sent: {error}") from None


class _Moving:
    """A call with data under way; leaving its `async with` before its end cancels it."""

    def __init__(self, exchange: Streaming) -> None:
        self._exchange = exchange

    async def answer(self) -> FileAnswer:
        """How it ended. :raises DSecError: badly."""
        answer: FileAnswer = codec(self._exchange.method).decode(await self._exchange.answer(PROGRESS_TIMEOUT_S))
        return answer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exchange.abandon(ClientClosedError("cannot go on: this transfer was left"))


class Download(_Moving):
    """What a sandbox sends, in pieces, up to its end."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        incoming = self._exchange.incoming[STDOUT]
        while (chunk := await incoming.get(PROGRESS_TIMEOUT_S)) is not None:
            yield chunk


class Upload(_Moving):
    """What a sandbox gets."""

    def __init__(self, exchange: Streaming, progress: Progress | None) -> None:
        super().__init__(exchange)
        self._progress = progress
        self._sent = 0

    async def send(self, data: bytes) -> bool:
        """False when the sandbox takes no more; its answer says why."""
        taken = await self._exchange.write(data, timeout=PROGRESS_TIMEOUT_S)
        self._sent += len(data)
        if taken and self._progress is not None:
            self._progress(self._sent)
        return taken

    async def end(self) -> FileAnswer:
        await self._exchange.write(b"", end=True, timeout=PROGRESS_TIMEOUT_S)
        return await self.answer()


class Transfers:
    """The whole-file and whole-tree operations of `Files`."""

    def __init__(self, channel: Channel, sandbox: str, user: str | None) -> None:
        self._channel = channel
        self._sandbox = sandbox
        self._user = user

    async def upload_file(self, source: str, path: str, parents: bool, progress: Progress | None) -> Transfer:
        file = await asyncio.to_thread(_open_local, source)
        with os.fdopen(file, "rb", buffering=0) as local:
            mode = os.fstat(file).st_mode & 0o777
            request = FileWriteRequest(self._sandbox, path, self._user, mode=mode, parents=parents)
            async with await self._upload("file.write", request, progress) as upload:
                return await self._send_all(upload, partial(local.read, _PIECE))

    async def extract(self, source: str, path: str, progress: Progress | None) -> Transfer:
        file = await asyncio.to_thread(_open_local, source)
        with os.fdopen(file, "rb", buffering=0) as local:
            request = FileExtractRequest(self._sandbox, path, self._user)
            async with await self._upload("file.extract", request, progress) as upload:
                return await self._send_all(upload, partial(local.read, _PIECE))

    async def upload_directory(self, source: str, path: str, progress: Progress | None) -> Transfer:
        request = FileExtractRequest(self._sandbox, path, self._user)
        pipe: ThreadPipe[Transfer] = ThreadPipe(partial(pack, source), loop_writes=False)
        async with await self._upload("file.extract", request, progress) as upload:

            async def pump(pipe: ThreadPipe[Transfer]) -> None:
                while piece := await pipe.read(_PIECE):
                    if not await upload.send(piece):
                        await upload.answer()  # raises what the sandbox had against it
                        raise WireError("cannot upload: the sandbox stopped reading before the end")

            transfer = await pipe.run(pump)
            await upload.end()
            return transfer

    async def download_file(self, path: str, target: str, mode: int, limit: int, progress: Progress | None) -> Transfer:
        request = FileReadRequest(self._sandbox, path, self._user)
        return await self._save("file.read", request, target, mode & 0o755 | 0o600, limit, progress)

    async def archive(self, path: str, target: str, limit: int, progress: Progress | None) -> Transfer:
        request = FileRequest(self._sandbox, path, self._user)
        return await self._save("file.archive", request, target, 0o644, limit, progress)

    async def download_directory(self, path: str, target: str, limit: int, progress: Progress | None) -> Transfer:
        await asyncio.to_thread(_make_directory, target)
        request = FileRequest(self._sandbox, path, self._user)
        work = partial(unpack, directory=target, max_bytes=limit)
        pipe: ThreadPipe[Transfer] = ThreadPipe(work, loop_writes=True)
        async with await self._download("file.archive", request) as download:

            async def pump(pipe: ThreadPipe[Transfer]) -> None:
                received = 0
                async for chunk in download:
                    await pipe.write(chunk)
                    received += len(chunk)
                    if progress is not None:
                        progress(received)
                await download.answer()

            return await pipe.run(pump)

    async def _save(
        self, method: str, request: msgspec.Struct, target: str, mode: int, limit: int, progress: Progress | None
    ) -> Transfer:
        async with await self._download(method, request) as download:
            # not in a thread: one that a cancel leaves behind would make the file, and nobody would know of it
            saving = _Saving(target, mode)
            try:
                async for chunk in download:
                    if saving.size + len(chunk) > limit:
                        raise QuotaExceededError(
                            f"cannot write {target}: more than the limit of {limit} bytes", limit=limit
                        )
                    saving.write(chunk)
                    if progress is not None:
                        progress(saving.size)
                answer = await download.answer()
                saving.commit()
            finally:
                saving.close()
        return Transfer(saving.size, max(1, answer.entries))

    async def _send_all(self, upload: Upload, read: Callable[[], bytes]) -> Transfer:
        while piece := await asyncio.to_thread(read):
            if not await upload.send(piece):
                break
        answer = await upload.end()
        return Transfer(answer.size, max(1, answer.entries))

    async def _upload(self, method: str, request: msgspec.Struct, progress: Progress | None) -> Upload:
        return Upload(await self._channel.stream(method, request, ()), progress)

    async def _download(self, method: str, request: msgspec.Struct) -> Download:
        return Download(await self._channel.stream(method, request, (STDOUT,)))


class _Saving:
    """A local file that appears under its name only when it is whole."""

    def __init__(self, target: str, mode: int) -> None:
        self._target = target
        self._part = f"{target}.{new_token()[:8]}.part"
        self.size = 0
        try:
            descriptor = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _local_error(target, error) from error
        self._file = os.fdopen(descriptor, "wb", buffering=4 * _PIECE)
        self._mode = mode

    def write(self, data: bytes) -> None:
        try:
            if data == ZEROS[: len(data)]:
                self._file.seek(len(data), os.SEEK_CUR)  # takes no room
            else:
                self._file.write(data)
        except OSError as error:
            raise _local_error(self._target, error) from error
        self.size += len(data)

    def commit(self) -> None:
        try:
            self._file.truncate(self.size)
            os.fchmod(self._file.fileno(), self._mode)
            os.replace(self._part, self._target)
        except OSError as error:
            raise _local_error(self._target, error) from error

    def close(self) -> None:
        """Gives up what was not committed."""
        try:
            self._file.close()
        except OSError:
            pass  # a full disk again, of which write or commit has told
        try:
            os.unlink(self._part)
        except FileNotFoundError:
            pass


def _open_local(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _local_error(path, error) from error


def _make_directory(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise _local_error(path, error) from error


def _local_error(path: str, error: OSError) -> FileOperationError:
    return FileOperationError(
        f"cannot use the local path {path}: {error.strerror}", path=path, errno=error.errno, local=True
    )
