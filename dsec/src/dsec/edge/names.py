"""Many names that come and are listed in order, a page at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator


class Names:
    __slots__ = ("_in_order", "_names")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = list(names)
        self._in_order = False

    def add(self, name: str) -> None:
        """One that is not there yet."""
        self._names.append(name)
        self._in_order = False

    def after(self, name: str | None) -> Iterator[str]:
        """Those above it, or all, in order. To be read before others are added."""
        names = self._names
        if not self._in_order:
            names.sort()  # quick: all but the last ones are in order
            self._in_order = True
        return (names[at] for at in range(0 if name is None else bisect_right(names, name), len(names)))

    def __len__(self) -> int:
        return len(self._names)
