"""The caller's directory: what of it COPY may take, and that as a tar and as a digest.

The digest is over names, kinds, modes, what links point to and what files contain; not over times, which differ from
checkout to checkout. It is made twice, for the key and while the tar is written: files that change meanwhile end the
build.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO, NamedTuple

from libdsec.protocol.errors import ConflictError, FileOperationError, InvalidArgumentError

from .beneath import Beneath
from .patterns import Ignore, compiled, has_wildcard

MAX_ENTRIES = 1_000_000
_PIECE = 1024 * 1024


class Entry(NamedTuple):
    path: str
    """Below the directory, its names joined by `/`."""
    mode: int
    """As lstat says it, the kind included."""


class Taken(NamedTuple):
    """One entry on its way: what it is here, and what it is called there, below the target's directory."""

    entry: Entry
    name: str


class Owner(NamedTuple):
    uid: int = 0
    gid: int = 0


class Context:
    """Read once, when first asked; the tree is expected to stay as it is until the build ends."""

    def __init__(self, directory: str, ignore: Ignore) -> None:
        self._root = os.path.realpath(directory)
        self._beneath = Beneath(self._root)
        self._ignore = ignore
        self._entries: dict[str, Entry] | None = None
        self._closed = False

    def close(self) -> None:
        """The build is over: what a thread still reads of it ends at the next piece."""
        self._closed = True

    def find(self, source: str) -> list[Entry]:
        """What a source of COPY names; a link is what it points to. The directory itself has the path ``.

        :raises InvalidArgumentError: nothing, or outside of the directory.
        """
        wanted = os.path.normpath(source.lstrip("/") or ".")
        if wanted == ".." or wanted.startswith("../"):
            raise InvalidArgumentError(f"cannot copy {source!r}: it lies outside of the build's directory")
        if not has_wildcard(wanted):
            return [self._resolved(wanted)]
        pattern, depth = compiled(wanted, deep=False), wanted.count("/")
        matching = [path for path in self._all() if path.count("/") == depth and pattern.matches(path)]
        if not matching:
            raise InvalidArgumentError(f"cannot copy {source!r}: nothing in {self._root} is called so")
        return [self._resolved(path) for path in matching]

    def below(self, directory: Entry) -> Iterator[Entry]:
        """All in it, itself left out, in the order of paths."""
        prefix = f"{directory.path}/" if directory.path else ""
        return (entry for path, entry in self._all().items() if path.startswith(prefix))

    def digest(self, taken: Sequence[Taken]) -> str:
        return self._pass(taken, None, Owner())

    def pack(self, taken: Sequence[Taken], sink: IO[bytes], owner: Owner, expected: str, *, root: bool) -> None:
        """As a tar, with `root` beginning with the directory itself.

        :raises ConflictError: it is not what the digest was made of.
        """
        with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as archive:
            if root:
                itself = tarfile.TarInfo(".")
                itself.type, itself.mode, (itself.uid, itself.gid) = tarfile.DIRTYPE, 0o755, owner
                archive.addfile(itself)
            if self._pass(taken, archive, owner) != expected:
                raise ConflictError(f"cannot copy out of {self._root}: files in it change while the image is built")

    def _resolved(self, path: str) -> Entry:
        real = os.path.realpath(os.path.join(self._root, path))
        inside = os.path.relpath(real, self._root)
        if inside == ".." or inside.startswith("../"):
            raise InvalidArgumentError(f"cannot copy {path!r}: it leads out of the build's directory, to {real}")
        if inside == ".":
            return Entry("", stat.S_IFDIR | 0o755)
        found = self._all().get(inside)
        if found is None:
            why = "it is left out by .dockerignore" if os.path.lexists(real) else f"there is none in {self._root}"
            raise InvalidArgumentError(f"cannot copy {path!r}: {why}")
        return found

    def _all(self) -> dict[str, Entry]:
        if self._entries is None:
            found: dict[str, Entry] = {}
            try:
                self._walk("", found)
            except OSError as error:
                raise _unreadable(error, self._root) from error
            self._entries = dict(sorted(found.items()))
        return self._entries

    def _walk(self, start: str, found: dict[str, Entry]) -> None:
        waiting = [start]
        while waiting:
            prefix = waiting.pop()
            with self._beneath.directory(prefix) as directory, os.scandir(directory) as entries:
                for each in entries:
                    path = f"{prefix}/{each.name}" if prefix else each.name
                    mode = each.stat(follow_symlinks=False).st_mode
                    out = self._ignore.leaves_out(path)
                    if stat.S_ISDIR(mode) and (not out or self._ignore.keeps_any):
                        waiting.append(path)
                    if out:
                        continue
                    if len(found) >= MAX_ENTRIES:
                        raise InvalidArgumentError(
                            f"cannot build in {self._root}: it has more than {MAX_ENTRIES} files; see .dockerignore"
                        )
                    found[path] = Entry(path, mode)

    def _pass(self, taken: Sequence[Taken], archive: tarfile.TarFile | None, owner: Owner) -> str:
        hasher = hashlib.sha256()
        for entry, name in taken:
            self._require_open()
            try:
                self._one(entry, name, archive, owner, hasher)
            except NotADirectoryError as error:
                why = "what lies above it is no directory any more, while the image is built"
                raise ConflictError(f"cannot copy {entry.path!r}: {why}") from error
            except OSError as error:
                raise _unreadable(error, entry.path) from error
        return hasher.hexdigest()

    def _one(
        self, entry: Entry, name: str, archive: tarfile.TarFile | None, owner: Owner, hasher: hashlib._Hash
    ) -> None:
        member = tarfile.TarInfo(name)
        member.mode = stat.S_IMODE(entry.mode)
        member.uid, member.gid = owner
        with self._beneath.parent(entry.path) as (parent, own):
            status = os.stat(own, dir_fd=parent, follow_symlinks=False)
            member.mtime = status.st_mtime
            _require_same_kind(status, entry)
            if stat.S_ISREG(entry.mode):
                self._file(parent, own, entry, member, archive, hasher)
                return
            if stat.S_ISDIR(entry.mode):
                member.type = tarfile.DIRTYPE
            elif stat.S_ISLNK(entry.mode):
                member.type, member.linkname = tarfile.SYMTYPE, os.readlink(own, dir_fd=parent)
            else:
                raise InvalidArgumentError(f"cannot copy {entry.path!r}: it is no file, directory or link")
        _say(hasher, entry, member)
        if archive is not None:
            archive.addfile(member)

    def _file(
        self,
        parent: int,
        own: str,
        entry: Entry,
        member: tarfile.TarInfo,
        archive: tarfile.TarFile | None,
        hasher: hashlib._Hash,
    ) -> None:
        descriptor = os.open(own, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            _require_same_kind(status, entry)
            member.size = status.st_size
            _say(hasher, entry, member)
            if archive is not None:
                hashed = _Hashed(entry.path, file, hasher, self._require_open)
                archive.addfile(member, hashed)  # type: ignore[arg-type]  # reading is all it needs
                return
            left = member.size  # of a file that grows as fast as it is read there would be no end
            while left and (piece := file.read(min(left, _PIECE))):
                self._require_open()
                hasher.update(piece)
                left -= len(piece)

    def _require_open(self) -> None:
        if self._closed:
            raise ConflictError(f"cannot copy out of {self._root}: the build is over")


class _Hashed:
    """A file that is hashed as it is read."""

    def __init__(self, path: str, file: IO[bytes], hasher: hashlib._Hash, go_on: Callable[[], None]) -> None:
        """`go_on` raises when there is no sense in it any more."""
        self._path = path
        self._file = file
        self._hasher = hasher
        self._go_on = go_on

    def read(self, size: int) -> bytes:
        self._go_on()
        piece = self._file.read(size)
        if len(piece) < size:
            raise ConflictError(f"cannot copy {self._path!r}: it became shorter while the image is built")
        self._hasher.update(piece)
        return piece


def _require_same_kind(status: os.stat_result, entry: Entry) -> None:
    if stat.S_IFMT(status.st_mode) != stat.S_IFMT(entry.mode):
        raise ConflictError(f"cannot copy {entry.path!r}: it changed while the image is built")


def _say(hasher: hashlib._Hash, entry: Entry, member: tarfile.TarInfo) -> None:
    words = (entry.path, member.type.decode(), f"{member.mode:o}", str(member.size), member.linkname)
    hasher.update("\0".join(words).encode("utf-8", "surrogateescape") + b"\0\0")


def _unreadable(error: OSError, path: str) -> FileOperationError:
    where = error.filename or path
    return FileOperationError(f"cannot read {where}: {error.strerror}", path=str(where), errno=error.errno or 0)


def take(context: Context, sources: Sequence[str], name: str | None) -> list[Taken]:
    """What COPY of these sources puts into the target's directory. Of a directory all that is in it; of a file itself,
    called `name` if that is given.

    :raises InvalidArgumentError: a source that is not there.
    """
    found: list[Taken] = []
    for source in sources:
        for entry in context.find(source):
            if stat.S_ISDIR(entry.mode):
                cut = len(entry.path) + 1 if entry.path else 0
                found += [Taken(each, each.path[cut:]) for each in context.below(entry)]
            else:
                own = os.path.basename(os.path.normpath(source)) if not has_wildcard(source) else ""
                found.append(Taken(entry, name or own or os.path.basename(entry.path)))
    return found
