"""Layers under way: of two pulls that need one layer at once, one makes it and the other waits.

A layer that is made stays here until the pull that made it ends, since the catalogue knows it only from its image on.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

from dsec.store.local import Taken
from dsec.store.records import LayerRecord

Key = tuple[bytes, str]
"""(What lies below, diff_id)."""


@dataclass(slots=True)
class _Flight:
    owner: Taken
    made: Made | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """A layer that one pull made, for all."""

    record: LayerRecord | None
    """None: it is empty."""
    bound: bool
    """What it is depends on what lies below."""


class Flights:
    """Calls are safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Key, _Flight] = {}

    def claim(self, key: Key, taken: Taken) -> Made | Literal["mine", "flying"]:
        """Make the layer, unless somebody else does or has: then it comes to be `taken`'s too, once it is there."""
        with self._lock:
            flight = self._flights.get(key)
            if flight is None:
                self._flights[key] = _Flight(taken)
                return "mine"
            if flight.made is None:
                return "flying"
            if flight.made.record is not None:
                taken.share(flight.made.record)
            return flight.made

    def landed(self, key: Key, made: Made) -> None:
        with self._lock:
            self._flights[key].made = made

    def leave(self, taken: Taken) -> None:
        """Of a pull that ends, before its layers are let go. What it did not finish somebody else begins anew."""
        with self._lock:
            for key in [key for key, flight in self._flights.items() if flight.owner is taken]:
                del self._flights[key]
