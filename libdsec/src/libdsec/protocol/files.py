"""File operations. They act as the sandbox's user (root by default) through system calls of PID 1's child, so that they
work in an image with no shell at all. Paths are absolute or relative to the sandbox's cwd; symlinks are followed as
the sandbox sees them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FileType = Literal["file", "directory", "symlink", "char", "block", "fifo", "socket"]


class FileInfo(msgspec.Struct, frozen=True):
    """What lstat says of one entry. `path` is as asked, or relative to the listed directory."""

    path: str
    type: FileType
    size: int
    mode: int
    """Permission bits, 0o7777."""
    uid: int
    gid: int
    mtime_ns: int
    nlink: int = 1
    target: str | None = None
    """Of a symlink."""


class FileRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Common to file.stat, file.mkdir, file.remove and file.archive."""

    sandbox: str
    path: str
    user: str | None = None
    recursive: bool = False
    """mkdir: make parents, and an existing directory is fine. remove: with all below it.
    stat, archive: not used (must be False)."""
    follow: bool = False
    """stat only: of what a symlink points to."""


class FileReadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """file.read: DATA on stream 2, then `FileAnswer`."""

    sandbox: str
    path: str
    user: str | None = None
    offset: int = 0
    length: int | None = None
    """Bytes at most; None is to the end."""


class FileWriteRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """file.write: the caller sends DATA on stream 1 up to END, then gets `FileAnswer`.

    Unless `append`, the file is replaced at once at the end (a temporary file beside it, renamed), so that no reader
    sees half. A file that is not regular (a device, a pipe) and a write that follows a symlink are written in place.
    """

    sandbox: str
    path: str
    user: str | None = None
    append: bool = False
    mode: int = 0o644
    """Permission bits of a new file."""
    parents: bool = False
    """Make missing parent directories (0o755)."""
    exclusive: bool = False
    """Fail when the path exists."""


class FileMoveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    sandbox: str
    path: str
    to: str
    user: str | None = None


class FileListRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """file.list: DATA on stream 2, each frame a MessagePack array of `FileInfo`; then `FileAnswer` with the count."""

    sandbox: str
    path: str
    user: str | None = None
    recursive: bool = False
    limit: int = 100_000
    """Entries at most; `FileAnswer.truncated` says whether more were left out."""


class FileExtractRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """file.extract: a tar stream as DATA on stream 1 up to END, unpacked below `path` (made if missing).

    A member that would land outside `path` is refused and ends the call.
    """

    sandbox: str
    path: str
    user: str | None = None


class FileWatchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """file.watch: DATA on stream 2, each frame a MessagePack array of `FileEvent`, until CANCEL or END of the call.

    The first frame, an empty array, says that the watch is in place.
    """

    sandbox: str
    path: str
    user: str | None = None
    recursive: bool = False


FileEventKind = Literal["created", "modified", "removed", "moved_from", "moved_to", "attributes", "overflow"]


class FileEvent(msgspec.Struct, frozen=True):
    """One change. `overflow` means events were lost: look again at everything."""

    kind: FileEventKind
    path: str
    """Relative to the watched path; empty for the path itself."""


class FileAnswer(msgspec.Struct, frozen=True):
    """The RESULT of every file operation."""

    size: int = 0
    """Bytes read, written, archived or unpacked."""
    entries: int = 0
    truncated: bool = False
    info: FileInfo | None = None
    """Of file.stat."""
