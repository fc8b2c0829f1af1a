"""Slots: host ids that are one sandbox's alone.

The first range of 65,536 ids from the base belongs to the keepers (PID 1 of slot n is its id n), each following range
to one slot. A slot given back goes to the end of the line, so that what may still carry its ids (an upper on its way
out) has the most time.
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

    def take(self) -> Slot:
        """:raises AdmissionRejectedError: all are taken."""
        if self._fresh < self._count:
            index = self._fresh
            self._fresh += 1
        elif self._returned:
            index = self._returned.popleft()
        else:
            raise AdmissionRejectedError(
                f"cannot take another sandbox: all {self._count} ranges of host ids are in use", resource="ids"
            )
        self._taken.add(index)
        return self._slot(index)

    def adopt(self, index: int) -> Slot:
        """The slot of a sandbox that an earlier edge made. All of them are adopted before the first `take`.

        :raises AdmissionRejectedError: there is no such slot (any more), or another one has it.
        """
        if not 0 <= index < self._count or index in self._taken:
            raise AdmissionRejectedError(f"cannot adopt slot {index}: of {self._count} it is not free", resource="ids")
        self._returned.extend(range(self._fresh, index))
        if index in self._returned:
            self._returned.remove(index)
        self._fresh = max(self._fresh, index + 1)
        self._taken.add(index)
        return self._slot(index)

    def give_back(self, slot: Slot) -> None:
        """Only when nothing runs with its ids. A slot not taken is a bug of the caller (ValueError)."""
        if slot.index not in self._taken:
            raise ValueError(f"slot {slot.index} was not taken")
        self._taken.remove(slot.index)
        self._returned.append(slot.index)

    def _slot(self, index: int) -> Slot:
        return Slot(index, self._id_base + RANGE * (index + 1), self._id_base + index)

    @property
    def taken(self) -> int:
        return len(self._taken)
