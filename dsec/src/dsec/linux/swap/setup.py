"""Making this node's swap and taking it away, with a record that outlives us."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from libdsec.protocol.errors import AlreadyExistsError, IntegrityError, InvalidArgumentError, PermissionDeniedError

from . import areas, file, zram

_RECORD = "swap.json"
_MIB = 1024 * 1024
_MOST_OF_MEMORY = 4
"""Times the memory that a zram device may be: data that compresses better than that is rare, and each page of a device
costs a little before it is used."""

Kind = Literal["zram", "file"]
State = Literal["made", "kept", "found", "removed"]
"""What became of an area: made now, ours already, somebody else's and left alone, taken away."""


class Made(msgspec.Struct, frozen=True):
    """An area and what became of it."""

    kind: Kind
    path: str
    bytes: int
    state: State


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: Kind
    path: str
    bytes: int
    identity: uuid.UUID
    boot: str
    """A device of an earlier boot is gone."""
    added: bool = False
    """The device itself was made for us."""


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: int = 1
    areas: tuple[_Entry, ...] = ()


class Setup:
    """The swap of one node. Every call holds a lock on the state directory against other processes."""

    def __init__(self, state_dir: str) -> None:
        self._directory = state_dir
        self._path = os.path.join(state_dir, _RECORD)

    def ours(self) -> list[str]:
        """Paths of the areas that we made, in use or not."""
        return [entry.path for entry in self._read().areas]

    def make_zram(self, size: int | None = None) -> Made:
        """A device that is swapped on: one of ours that is there already, or a new one. Without a size half of memory,
        and somebody else's device will do.

        :raises InvalidArgumentError: a size that makes no sense here.
        :raises AlreadyExistsError: ours is there with another size.
        :raises UnsupportedOperationError: this kernel has no zram.
        """
        memory = areas.memory_bytes("MemTotal")
        wanted = _checked(memory // 2 if size is None else size, _MOST_OF_MEMORY * memory, "zram")
        with self._locked():
            entry = self._entry("zram")
            if entry is not None and self._in_use(entry):
                if size is not None and entry.bytes != wanted:
                    raise _another(entry, wanted)
                return Made("zram", entry.path, entry.bytes, "kept")
            if entry is not None:
                self._take_away(entry)
            others = next((area for area in areas.areas_in_use() if area.zram), None)
            if size is None and others is not None:
                return Made("zram", others.path, others.bytes, "found")
            device, added = zram.free_device()
            entry = _Entry("zram", device, wanted, uuid.uuid4(), _boot(), added)
            self._make(entry, lambda: zram.configure(device, wanted, entry.identity))
            return Made("zram", device, wanted, "made")

    def make_file(self, path: str, size: int) -> Made:
        """A file that is swapped on: ours at this path, or a new one.

        :raises InvalidArgumentError: a path or a size that makes no sense here.
        :raises AlreadyExistsError: something else is at the path, or ours is elsewhere or of another size.
        :raises CapacityError: there is not that much room.
        :raises UnsupportedOperationError: nothing can be swapped on the file system.
        """
        wanted = _checked(size, 1 << 44, "swap file")
        with self._locked():
            entry = self._entry("file")
            if entry is not None and areas.identity_of(entry.path) == entry.identity:
                if (entry.path, entry.bytes) != (path, wanted):
                    raise _another(entry, wanted, path)
                if self._in_use(entry):
                    return Made("file", path, wanted, "kept")
                file.use(path)
                return Made("file", path, wanted, "made")
            if entry is not None:
                self._take_away(entry)
            file.check_path(path, wanted)
            entry = _Entry("file", path, wanted, uuid.uuid4(), _boot())
            self._make(entry, lambda: file.make(path, wanted, entry.identity))
            return Made("file", path, wanted, "made")

    def undo(self) -> list[Made]:
        """Take away what we made, whatever state a crash left it in. What cannot go stays recorded.

        :raises CapacityError: what is in an area does not fit into memory.
        """
        removed = []
        with self._locked():
            for entry in self._read().areas:
                self._take_away(entry)
                removed.append(Made(entry.kind, entry.path, entry.bytes, "removed"))
        return removed

    def _make(self, entry: _Entry, work: Callable[[], None]) -> None:
        self._write(_Record(areas=(*self._read().areas, entry)))
        try:
            work()
        except BaseException:
            self._take_away(entry)
            raise

    def _take_away(self, entry: _Entry) -> None:
        if entry.kind == "file":
            file.remove(entry.path, entry.identity)
        elif entry.boot == _boot():
            zram.reset(entry.path, entry.identity, entry.added)
        self._write(_Record(areas=tuple(other for other in self._read().areas if other != entry)))

    def _entry(self, kind: Kind) -> _Entry | None:
        return next((entry for entry in self._read().areas if entry.kind == kind), None)

    def _in_use(self, entry: _Entry) -> bool:
        return areas.area_at(entry.path) is not None and areas.identity_of(entry.path) == entry.identity

    def _read(self) -> _Record:
        try:
            with open(self._path, "rb") as record:
                found = msgspec.json.decode(record.read(), type=_Record)
        except FileNotFoundError:
            return _Record()
        except msgspec.DecodeError as error:
            raise IntegrityError(
                f"cannot read {self._path}: {error}; remove it once `swapon --show` names no area of this node",
                path=self._path,
            ) from error
        if found.schema != 1:
            raise IntegrityError(f"cannot read {self._path}: its schema {found.schema} is of another version of dsec")
        return found

    def _write(self, record: _Record) -> None:
        if not record.areas:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            return
        descriptor, temporary = tempfile.mkstemp(prefix=f".{_RECORD}-", dir=self._directory)
        try:
            with open(descriptor, "wb") as output:
                output.write(msgspec.json.encode(record))
                output.flush()
                os.fsync(output.fileno())
            os.rename(temporary, self._path)
        except BaseException:
            os.unlink(temporary)
            raise

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if os.geteuid() != 0:
            raise PermissionDeniedError("cannot set up swap: it needs root")
        os.makedirs(self._directory, 0o700, exist_ok=True)
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AlreadyExistsError(
                    f"cannot set up swap: another `dsec node setup` works on {self._directory}; try again when it ends",
                    path=self._directory,
                ) from None
            yield
        finally:
            os.close(descriptor)


def _checked(size: int, most: int, what: str) -> int:
    """In whole pages."""
    if not areas.LEAST_BYTES <= size <= most:
        raise InvalidArgumentError(
            f"cannot make {what} of {size / _MIB:g} MiB: it must be from {areas.LEAST_BYTES // _MIB} "
            f"to {most // _MIB} MiB",
            field="size",
        )
    return size - size % areas.PAGE


def _another(entry: _Entry, wanted: int, path: str | None = None) -> AlreadyExistsError:
    where = f" at {path}" if path is not None else ""
    return AlreadyExistsError(
        f"cannot make {entry.kind} swap of {wanted // _MIB} MiB{where}: this node has {entry.path} "
        f"of {entry.bytes // _MIB} MiB; take it away first with `dsec node setup --undo`",
        path=entry.path,
    )


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as identity:
        return identity.read().strip()
