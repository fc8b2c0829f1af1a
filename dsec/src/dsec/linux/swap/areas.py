"""What the kernel swaps on, and the first page of an area."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import uuid
from dataclasses import dataclass

from libdsec.protocol.errors import CapacityError

from .. import syscalls
from ..syscalls import KernelError, from_os_error

_MIB = 1024 * 1024
PAGE = os.sysconf("SC_PAGE_SIZE")
LEAST_BYTES = _MIB
"""Below it an area is nothing but its header and a few pages."""
_SIGNATURE = b"SWAPSPACE2"
_UUID_AT = 1024 + 12


@dataclass(frozen=True, slots=True)
class Area:
    """A line of /proc/swaps."""

    path: str
    bytes: int
    used_bytes: int
    priority: int

    @property
    def zram(self) -> bool:
        return os.path.basename(self.path).startswith("zram")


def areas_in_use(table: str = "/proc/swaps") -> list[Area]:
    """Every area in use, the highest priority first."""
    try:
        with open(table, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()[1:]
    except OSError as error:
        if error.errno == errno.ENOENT:  # a kernel without swap
            return []
        raise from_os_error(error, "read", table) from None
    found = []
    for line in lines:
        path, _, size, used, priority = line.rsplit(maxsplit=4)
        path = path.encode("latin-1", "surrogateescape").decode("unicode_escape")
        found.append(Area(path.removesuffix("\\040(deleted)"), int(size) * 1024, int(used) * 1024, int(priority)))
    return sorted(found, key=lambda area: -area.priority)


def area_at(path: str) -> Area | None:
    return next((area for area in areas_in_use() if area.path == path), None)


def header(size: int, identity: uuid.UUID) -> bytes:
    """The first page of an area of so many bytes."""
    pages = size // PAGE
    information = struct.pack("=III16s16s", 1, pages - 1, 0, identity.bytes, b"dsec")
    page = b"\0" * 1024 + information
    return page.ljust(PAGE - len(_SIGNATURE), b"\0") + _SIGNATURE


def identity_of(path: str) -> uuid.UUID | None:
    """The UUID of the area at a path; None when there is no area there."""
    page = first_page(path)
    if page is None or not page.endswith(_SIGNATURE):
        return None
    return uuid.UUID(bytes=page[_UUID_AT : _UUID_AT + 16])


def first_page(path: str) -> bytes | None:
    """None when there is nothing to be read."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(PAGE)
    return None


def leave(path: str) -> None:
    """Swap on it no more; what is in it comes back into memory. Nothing happens when it is not in use.

    :raises CapacityError: what is in it does not fit into memory, or not into a group's limit. It stays in use.
    """
    area = area_at(path)
    if area is None:
        return
    available = memory_bytes("MemAvailable")
    if area.used_bytes >= available:
        raise _no_room(area, f"and {available // _MIB} MiB of memory are free")
    try:
        syscalls.swapoff(path)
    except KernelError as error:
        if error.errno == errno.ENOMEM:
            raise _no_room(area, "and they do not fit into memory, or not into a control group's limit") from error
        if error.errno != errno.EINVAL or area_at(path) is not None:  # EINVAL: somebody else was faster
            raise


def _no_room(area: Area, why: str) -> CapacityError:
    return CapacityError(
        f"cannot take {area.path} away: {area.used_bytes // _MIB} MiB are in it, {why}",
        path=area.path,
        used_bytes=area.used_bytes,
        remedy="stop sandboxes, or resume them one by one, and try again",
    )


def memory_bytes(name: str) -> int:
    """A line of /proc/meminfo."""
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            key, _, rest = line.partition(":")
            if key == name:
                return int(rest.split()[0]) * 1024
    return 0
