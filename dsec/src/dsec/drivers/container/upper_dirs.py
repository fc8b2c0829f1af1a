"""Where uppers lie: in a few directories, each in a block group of its own where the file system is ext4.

ext4 does not use an inode again for minutes after it was deleted; each creation steps over those of its block group,
one by one (`dsec.linux.spread`). In one directory, uppers that come and go make every mkdir a matter of a
millisecond. In one block group each they would be fast, but the first touch of each group's tables is charged to
the sandbox that does it, and keeps its dead control group for as long as the table is cached: so there are few.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from dsec.linux.removal import Trash
from dsec.linux.spread import spread_children
from dsec.linux.uppers import TRASH, leftovers, remove_leftover

COUNT = 32


class UpperDirs:
    def __init__(self, top: str) -> None:
        """Made here where they are missing."""
        self._top = top
        self._names = [f"{number:02x}" for number in range(COUNT)]
        os.makedirs(top, 0o700, exist_ok=True)
        spread_children(top)
        for name in self._names:
            os.makedirs(os.path.join(top, name), 0o700, exist_ok=True)
        self.trash = Trash(os.path.join(top, TRASH))

    def of(self, slot: int) -> str:
        """The parent directory for the upper of a slot."""
        return f"{self._top}/{self._names[slot % COUNT]}"

    def clear(self, keep: Collection[str] = ()) -> int:
        """Throw away what an earlier process left; the files go in the background. `keep` are the homes of those that
        are in use. Returns how many uppers it were."""
        found = 0
        for parent in [self._top, *(os.path.join(self._top, name) for name in self._names)]:
            for name in leftovers(parent):
                if (parent != self._top or name not in self._names) and os.path.join(parent, name) not in keep:
                    remove_leftover(parent, name, self.trash)
                    found += 1
        for name in os.listdir(self.trash.directory):
            self.trash.empty_later(os.path.join(self.trash.directory, name))
        return found
