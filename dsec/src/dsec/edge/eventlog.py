"""What happened to one sandbox, oldest first, bounded.

Ends of commands are kept as they came over the wire and read only when somebody asks: most logs nobody ever reads.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from libdsec.protocol.calls import LogEntry

MAX_ENTRIES = 256
MAX_TEXT = 200

_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode


class EventLog:
    __slots__ = ("_entries", "dropped")

    def __init__(self) -> None:
        self._entries: deque[tuple[float, str, dict[str, Any], bytes]] = deque(maxlen=MAX_ENTRIES)
        self.dropped = 0
        """Entries that gave way to newer ones."""

    def add(self, at: float, event: str, detail: dict[str, Any] | None = None, answer: bytes = b"") -> None:
        """`answer`: an encoded map whose fields join the detail when the entry is read."""
        if len(self._entries) == MAX_ENTRIES:
            self.dropped += 1
        self._entries.append((at, event, detail or {}, answer))

    def read(self, limit: int) -> tuple[LogEntry, ...]:
        """The last `limit` entries, oldest first."""
        kept = list(self._entries)[-limit:] if limit > 0 else []
        return tuple(LogEntry(at, event, {**detail, **_read(answer)}) for at, event, detail, answer in kept)


def shortened(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _read(answer: bytes) -> dict[str, Any]:
    """A map that came from a sandbox may be anything; what cannot be read is said to be so."""
    if not answer:
        return {}
    try:
        return _decode(answer)
    except msgspec.DecodeError as error:
        return {"unreadable": str(error)}
