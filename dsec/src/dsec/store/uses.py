"""What garbage collection goes by: when each layer was last used, and which images are pinned.

Uses are noted in memory and written down now and then, all at once: what a crash loses makes a layer look some minutes
older, and no more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence

from .catalogue import Catalogue

JUST_USED_S = 30.0
"""A sandbox that is being made has its layers chosen that long before it counts as their user, at most."""


class Uses:
    """Calls are safe from several threads; all but `note` and `just_used` look into the database."""

    def __init__(self, catalogue: Catalogue, now: Callable[[], float]) -> None:
        self._catalogue = catalogue
        self._now = now
        self._lock = threading.Lock()
        self._noted: dict[str, float] = {}
        """Of this process: what is not written yet, and what was used last."""
        self._written: dict[str, float] = {}

    def note(self, digests: Iterable[str]) -> None:
        """These layers are used now."""
        now = self._now()
        with self._lock:
            for digest in digests:
                self._noted[digest] = now

    def just_used(self, digest: str) -> bool:
        """Whether it was noted so lately that somebody may be about to use it."""
        with self._lock:
            return self._noted.get(digest, float("-inf")) > self._now() - JUST_USED_S

    def write(self) -> None:
        """Write down what was noted, and forget what layers that are gone were used for."""
        with self._lock:
            new = {digest: at for digest, at in self._noted.items() if self._written.get(digest) != at}
        if not new:
            return
        with self._catalogue.transaction() as database:
            database.executemany("INSERT OR REPLACE INTO layer_uses VALUES (?, ?)", list(new.items()))
            database.execute("DELETE FROM layer_uses WHERE digest NOT IN (SELECT digest FROM layers)")
            left = {digest for (digest,) in database.execute("SELECT digest FROM layer_uses")}
        with self._lock:
            self._written = {d: at for d, at in (self._written | new).items() if d in left}
            self._noted = {d: at for d, at in self._noted.items() if d in left or new.get(d) != at}

    def last(self) -> dict[str, float]:
        """When each layer that was ever used was used last."""
        rows: Sequence[tuple[str, float]] = self._catalogue.rows("SELECT digest, used_at FROM layer_uses")
        with self._lock:
            return {**dict(rows), **self._noted}

    def pin(self, ref: str, pinned: bool) -> None:
        """Keep an image, or no longer.

        :raises ImageNotFoundError: no image of that name.
        """
        self._catalogue.get(ref)
        with self._catalogue.transaction() as database:
            if pinned:
                database.execute(
                    "INSERT OR IGNORE INTO pins SELECT ref, ? FROM images WHERE ref = ?", (self._now(), ref)
                )
            else:
                database.execute("DELETE FROM pins WHERE ref = ?", (ref,))

    def pinned(self) -> frozenset[str]:
        """Names of pinned images."""
        return frozenset(ref for (ref,) in self._catalogue.rows("SELECT ref FROM pins"))


def layer_bytes(directory: str) -> int:
    """What a layer takes on the disk; 0 where it is gone."""
    try:
        with os.scandir(directory) as entries:
            return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in entries)
    except FileNotFoundError:
        return 0
