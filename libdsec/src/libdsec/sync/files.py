"""The files of a sandbox, blocking."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from .. import files as aio
from ..protocol.files import FileEvent
from .portal import Twin, blocking, iterated


class Files(Twin):
    __doc__ = aio.Files.__doc__

    read = blocking(aio.Files.read)
    read_text = blocking(aio.Files.read_text)
    write = blocking(aio.Files.write)
    append = blocking(aio.Files.append)
    stat = blocking(aio.Files.stat)
    exists = blocking(aio.Files.exists)
    list = blocking(aio.Files.list)
    mkdir = blocking(aio.Files.mkdir)
    remove = blocking(aio.Files.remove)
    move = blocking(aio.Files.move)
    upload = blocking(aio.Files.upload)
    download = blocking(aio.Files.download)
    archive = blocking(aio.Files.archive)
    extract = blocking(aio.Files.extract)

    def as_user(self, user: str | int) -> Files:
        """The same files with another user's rights."""
        return Files(self._portal, self._twin.as_user(user))

    def watch(self, path: str, *, recursive: bool = False) -> Watch:
        """Changes of a file or directory as they happen: `with files.watch(path) as events`."""
        return Watch(self._portal, self._twin.watch(path, recursive=recursive))


class Watch(Twin):
    """Changes of a path, from when its `with` was entered."""

    def __enter__(self) -> Self:
        self._portal.call(self._twin.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.call(self._twin.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[FileEvent]:
        return iterated(self._portal, self._twin)
