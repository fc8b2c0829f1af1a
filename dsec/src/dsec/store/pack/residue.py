"""What was left out of a packed layer, added up: one row for each place at which leaving out began."""

from __future__ import annotations

import os
import stat
from typing import Final

from dsec.store.tree import printable
from libdsec.protocol.images import Scrubbed

MAX_ROWS: Final = 1000


class Row:
    """One path, with what went with it."""

    __slots__ = ("bytes", "files", "path", "why")

    def __init__(self, path: bytes, why: str) -> None:
        self.path = path
        self.why = why
        self.files = 0
        self.bytes = 0


class Residue:
    def __init__(self) -> None:
        self._rows: list[Row] = []
        self.files = 0
        self.bytes = 0

    def begin(self, path: bytes, why: str) -> Row:
        row = Row(path, why)
        if len(self._rows) < MAX_ROWS:
            self._rows.append(row)
        return row

    def add(self, row: Row, status: os.stat_result | None) -> None:
        """An entry goes with a row; None: one without content."""
        size = 0
        if status is not None and stat.S_ISREG(status.st_mode):
            size = min(status.st_size, status.st_blocks * 512)
        self._count(row, 1, size)

    def take_back(self, row: Row) -> None:
        """One without content stays after all."""
        self._count(row, -1, 0)

    def _count(self, row: Row, files: int, size: int) -> None:
        row.files += files
        row.bytes += size
        self.files += files
        self.bytes += size

    def rows(self) -> tuple[Scrubbed, ...]:
        """Those that something went with, in the order in which they were begun."""
        return tuple(Scrubbed(printable(row.path), row.why, row.files, row.bytes) for row in self._rows if row.files)
