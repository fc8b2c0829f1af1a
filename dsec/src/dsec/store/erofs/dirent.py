"""Directories: blocks of entries in the byte order of names, each block with its entries first and its names after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from dsec.store.erofs.format import BLOCK_SIZE, DIRENT

_ENTRY: Final = DIRENT.size


def split_names(names: Sequence[bytes]) -> list[tuple[int, int]]:
    """How many of the sorted `names` go into each block and how many bytes of it they fill: [(count, bytes)]."""
    blocks: list[tuple[int, int]] = []
    count = used = 0
    for name in names:
        need = _ENTRY + len(name)
        if used + need > BLOCK_SIZE:
            blocks.append((count, used))
            count = used = 0
        count += 1
        used += need
    blocks.append((count, used))
    return blocks


def pack_block(names: Sequence[bytes], look_up: Callable[[bytes], tuple[int, int]]) -> bytes:
    """One block, without padding. `look_up` gives a name's (nid, file type)."""
    head = bytearray(_ENTRY * len(names))
    offset = len(head)
    position = 0
    pack = DIRENT.pack_into
    for name in names:
        nid, kind = look_up(name)
        pack(head, position, nid, offset, kind, 0)
        position += _ENTRY
        offset += len(name)
    return bytes(head) + b"".join(names)
