"""One zram device: a disk in memory that keeps its pages compressed."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from dataclasses import dataclass

from libdsec.protocol.errors import UnsupportedOperationError

from .. import syscalls
from ..syscalls import from_os_error
from . import areas

PRIORITY = 100
"""It fills before a file does."""
_CONTROL = "/sys/class/zram-control"
_ALGORITHMS = ("zstd", "lz4", "lzo-rle")
"""The first one that is there: how much fits counts for more than how fast, a pause is nothing that one waits for."""


@dataclass(frozen=True, slots=True)
class Compression:
    """What a device holds and what it takes."""

    algorithm: str
    data_bytes: int
    memory_bytes: int


def free_device() -> tuple[str, bool]:
    """The path of a device that nobody has configured, and whether it was added for us.

    :raises UnsupportedOperationError: this kernel has no zram.
    """
    number = 0
    while os.path.isdir(sys := f"/sys/block/zram{number}"):
        if _read(f"{sys}/disksize") == "0" and os.path.exists(f"/dev/zram{number}"):
            return f"/dev/zram{number}", False
        number += 1
    try:
        return f"/dev/zram{_read(f'{_CONTROL}/hot_add')}", True
    except OSError as error:
        raise UnsupportedOperationError(
            f"cannot make a zram device: {error}; load the module zram, on the host if this is a container, "
            "or use a swap file",
            device="zram",
        ) from error


def configure(device: str, size: int, identity: uuid.UUID) -> None:
    """Make it that large, write an area's header, and swap on it. The caller resets it when this fails."""
    sys = _sys(device)
    offered = _read(f"{sys}/comp_algorithm").replace("[", "").replace("]", "").split()
    chosen = next((name for name in _ALGORITHMS if name in offered), None)
    if chosen is not None:
        _write(f"{sys}/comp_algorithm", chosen)
    _write(f"{sys}/disksize", str(size))
    try:
        with open(device, "r+b", buffering=0) as file:
            file.write(areas.header(size, identity))
            os.fsync(file.fileno())
    except OSError as error:
        raise from_os_error(error, "write the header of", device) from None
    syscalls.swapon(device, PRIORITY)


def reset(device: str, identity: uuid.UUID, added: bool) -> None:
    """Swap on it no more and give all its memory back, if it is ours: it has the UUID, or is still blank.

    :raises CapacityError: what is in it does not fit into memory.
    """
    sys = _sys(device)
    if not os.path.isdir(sys):
        return
    if _read(f"{sys}/disksize") != "0":
        if areas.identity_of(device) != identity and any(areas.first_page(device) or b"\1"):
            return
        areas.leave(device)
        _write(f"{sys}/reset", "1")
    if added:
        # somebody else may have taken it meanwhile: then it is theirs
        with contextlib.suppress(OSError):
            _write(f"{_CONTROL}/hot_remove", device.removeprefix("/dev/zram"))


def compression(device: str) -> Compression | None:
    """None when it is no zram device that is in use."""
    sys = _sys(device)
    try:
        numbers = _read(f"{sys}/mm_stat").split()
        algorithms = _read(f"{sys}/comp_algorithm").split()
    except OSError:
        return None
    chosen = next((name.strip("[]") for name in algorithms if name.startswith("[")), "?")
    return Compression(chosen, int(numbers[0]), int(numbers[2]))


def _sys(device: str) -> str:
    return f"/sys/block/{os.path.basename(device)}"


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError as error:
        raise from_os_error(error, "read", path) from None


def _write(path: str, value: str) -> None:
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(value)
    except OSError as error:
        busy = "it is in use" if error.errno == errno.EBUSY else ""
        raise from_os_error(error, "write", path, busy or f"value {value}") from None
