"""Packs in the making: chunks go in one behind the other, until it is full."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from .table import PACK_BYTES, Pack, Place


@dataclass
class OpenPack:
    """Number `number` of its layer's table."""

    number: int
    content: bytearray = field(default_factory=bytearray)
    chunks: list[tuple[bytes, Place]] = field(default_factory=list)

    def has_room(self, stored: int) -> bool:
        return len(self.content) + stored <= PACK_BYTES

    def add(self, digest: bytes, encoding: int, stored: bytes) -> Place:
        place = Place(self.number, len(self.content), len(stored), encoding)
        self.content += stored
        self.chunks.append((digest, place))
        return place

    def close(self) -> Pack:
        return Pack(hashlib.sha256(self.content).digest(), len(self.content))
