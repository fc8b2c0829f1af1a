"""Slots: host ids that are one sandbox's alone.

The first range of 65,536 ids from the base belongs to the keepers (PID 1 of slot n is its id n), each following range
to one slot. A slot given back goes to the end of the line, so that what may still carry its ids (an upper on its way
out) has the most time.

A sandbox that is adopted keeps the ids that it was made with. Where the base was another one then, these may lie across
ranges of now: a slot that shares an id with it is not given to anybody while it lives.
"""

from __future__ import annotations

from collections import deque

from dsec.drivers.base import Slot
from libdsec.protocol.errors import AdmissionRejectedError

RANGE = 65_536


class Slots:
    def __init__(self, id_base: int, count: int) -> None:
        self._id_base = id_base
        self._count = count
        self._fresh = 0
        self._returned: deque[int] = deque()
        self._taken: set[int] = set()
        self._strangers: dict[int, Slot] = {}
        """Those that are taken and count from another base."""

    def take(self) -> Slot:
        """:raises AdmissionRejectedError: all are taken."""
        for _ in range(self._count - self._fresh + len(self._returned)):
            if self._fresh < self._count:
                index = self._fresh
                self._fresh += 1
            else:
                index = self._returned.popleft()
            slot = self._slot(index)
            if not any(_share(slot, stranger) for stranger in self._strangers.values()):
                self._taken.add(index)
                return slot
            self._returned.append(index)
        raise AdmissionRejectedError(
            f"cannot take another sandbox: all {self._count} ranges of host ids are in use", resource="ids"
        )

    def adopt(self, index: int, id_base: int = 0) -> Slot:
        """The slot of a sandbox that an earlier edge made, and the first of its ids (0: as they would be now). All of
        them are adopted before the first `take`.

        :raises AdmissionRejectedError: there is no such slot (any more), or another one has it.
        """
        if not 0 <= index < self._count or index in self._taken:
            raise AdmissionRejectedError(f"cannot adopt slot {index}: of {self._count} it is not free", resource="ids")
        self._returned.extend(range(self._fresh, index))
        if index in self._returned:
            self._returned.remove(index)
        self._fresh = max(self._fresh, index + 1)
        self._taken.add(index)
        slot = self._slot(index)
        if id_base and id_base != slot.id_base:
            slot = self._strangers[index] = Slot(index, id_base, id_base - RANGE * (index + 1) + index)
        return slot

    def give_back(self, slot: Slot) -> None:
        """Only when nothing runs with its ids. A slot not taken is a bug of the caller (ValueError)."""
        if slot.index not in self._taken:
            raise ValueError(f"slot {slot.index} was not taken")
        self._taken.remove(slot.index)
        self._strangers.pop(slot.index, None)
        self._returned.append(slot.index)

    def _slot(self, index: int) -> Slot:
        return Slot(index, self._id_base + RANGE * (index + 1), self._id_base + index)

    @property
    def taken(self) -> int:
        return len(self._taken)


def _share(one: Slot, other: Slot) -> bool:
    """Whether they have an id in common."""
    return (
        abs(one.id_base - other.id_base) < RANGE
        or one.keeper == other.keeper
        or 0 <= one.keeper - other.id_base < RANGE
        or 0 <= other.keeper - one.id_base < RANGE
    )
