"""A tree made in code as a source: for small layers that a program writes itself."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

from dsec.store.sources.base import Extent, SourceItem


class BytesContent:
    """Content from memory. With `extents`, `data` is what lies in them, one after another, of a file of `size`."""

    __slots__ = ("_data", "extents", "size")

    def __init__(self, data: bytes, *, size: int | None = None, extents: Sequence[Extent] | None = None) -> None:
        self._data = memoryview(data)
        self.size = len(data) if size is None else size
        self.extents = extents

    def readinto(self, view: memoryview) -> int:
        count = min(len(view), len(self._data))
        view[:count] = self._data[:count]
        self._data = self._data[count:]
        return count


class MemorySource:
    """Yields the items that it is given. Nodes and contents belong to the build afterwards: use them once."""

    def __init__(self, items: Iterable[SourceItem]) -> None:
        self._items = items

    def entries(self) -> Generator[SourceItem, None, None]:
        """See `Source.entries`."""
        yield from self._items
