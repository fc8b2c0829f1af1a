"""Between local files and a sandbox's, in bounded memory: bytes go on as the other side takes them."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Callable
from functools import partial

import msgspec

from ._archive import ZEROS, Transfer, pack, unpack
from ._moving import Download, Progress, ReplayedDownload, ReplayedUpload, Upload
from ._pipe import ThreadPipe
from ._steps.track import Begun, Track
from .protocol.errors import FileOperationError, QuotaExceededError, WireError
from .protocol.files import FileExtractRequest, FileReadRequest, FileRequest, FileWriteRequest
from .protocol.frames import STDOUT
from .protocol.ids import new_token

_PIECE = 256 * 1024


class Transfers:
    """The whole-file and whole-tree operations of `Files`."""

    def __init__(self, track: Track, sandbox: str, user: str | None) -> None:
        self._track = track
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

    async def download_file(
        self, looked: Begun, path: str, target: str, mode: int, limit: int, progress: Progress | None
    ) -> Transfer:
        """`looked` was asked before, what there is."""
        request = FileReadRequest(self._sandbox, path, self._user)
        return await self._save("file.read", request, target, mode & 0o755 | 0o600, limit, progress, looked)

    async def archive(self, path: str, target: str, limit: int, progress: Progress | None) -> Transfer:
        request = FileRequest(self._sandbox, path, self._user)
        return await self._save("file.archive", request, target, 0o644, limit, progress)

    async def download_directory(
        self, looked: Begun, path: str, target: str, limit: int, progress: Progress | None
    ) -> Transfer:
        """`looked` was asked before, what there is."""
        await asyncio.to_thread(_make_directory, target)
        request = FileRequest(self._sandbox, path, self._user)
        work = partial(unpack, directory=target, max_bytes=limit)
        pipe: ThreadPipe[Transfer] = ThreadPipe(work, loop_writes=True)
        async with await self._download("file.archive", request, looked) as download:

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
        self,
        method: str,
        request: msgspec.Struct,
        target: str,
        mode: int,
        limit: int,
        progress: Progress | None,
        *before: Begun,
    ) -> Transfer:
        async with await self._download(method, request, *before) as download:
            # not in a thread: one that a cancel leaves behind would make the file, and nobody would know of it
            saving = Saving(target, mode)
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

    async def _send_all(self, upload: Upload | ReplayedUpload, read: Callable[[], bytes]) -> Transfer:
        while piece := await asyncio.to_thread(read):
            if not await upload.send(piece):
                break
        answer = await upload.end()
        return Transfer(answer.size, max(1, answer.entries))

    async def _upload(self, method: str, request: msgspec.Struct, progress: Progress | None) -> Upload | ReplayedUpload:
        begun = await self._track.begin(method, request)
        if begun.step is not None:
            return ReplayedUpload(self._track, begun, begun.step)
        return Upload(await self._track.start(begun, ()), progress)

    async def _download(self, method: str, request: msgspec.Struct, *before: Begun) -> Download | ReplayedDownload:
        begun = await self._track.begin(method, request)
        if begun.step is not None:
            return ReplayedDownload(self._track, begun, begun.step, before)
        return Download(await self._track.start(begun, (STDOUT,)))


class Saving:
    """A local file that appears under its name only when it is whole."""

    def __init__(self, target: str, mode: int) -> None:
        self._target = target
        self._part = f"{target}.{new_token()[:8]}.part"
        self.size = 0
        _check_replaceable(target)
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


def _check_replaceable(target: str) -> None:
    """A device or FIFO that was named would be gone, and a file in its place: /dev/null for all of the machine."""
    try:
        mode = os.stat(target).st_mode
    except OSError:
        return  # nothing is there, or making the part will tell
    if not stat.S_ISREG(mode):
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise FileOperationError(
            f"cannot use the local path {target}: it is no regular file", path=target, errno=number, local=True
        )


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
