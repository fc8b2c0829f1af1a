"""What a source promises."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dsec.store.tree import Node

Extent = tuple[int, int]
"""Bytes of a file that the source has data for: (offset, length)."""


class Content(Protocol):
    """The bytes of one regular file, read once from front to end."""

    @property
    def size(self) -> int:
        """Length of the file in bytes, holes included."""

    @property
    def extents(self) -> Sequence[Extent] | None:
        """Where the file has data: ascending, without overlap, inside `size`. None: everywhere."""

    def readinto(self, view: memoryview) -> int:
        """Read the next bytes *of the extents*, holes left out, into `view`; 0 means that there are no more.

        May return less than asked for. Raises `InvalidArgumentError` when the input is damaged.
        """


@dataclass(slots=True)
class Entry:
    """A node and its name; `content` is there for regular files only, and may be missing for an empty one."""

    path: bytes
    node: Node
    content: Content | None = None


@dataclass(slots=True)
class HardLink:
    """Another name of a file that the same source has yielded before."""

    path: bytes
    target: bytes


@dataclass(slots=True)
class Opaque:
    """The directory at `path` hides what lower layers have in it."""

    path: bytes


@dataclass(slots=True)
class Whiteout:
    """Nothing of lower layers shows at `path`; what this layer itself has there does."""

    path: bytes


SourceItem = Entry | HardLink | Opaque | Whiteout


class Source(Protocol):
    """One input, read once."""

    def entries(self) -> Generator[SourceItem, None, None]:
        """Yield the input's entries; called once. The root itself (`b""`) may be among them.

        Raises `InvalidArgumentError` naming the member for an input that no layer can be built from, and
        `FileOperationError` (path, errno) when the file system that is read says no. Closing the iterator gives back
        every descriptor that the source took.
        """
