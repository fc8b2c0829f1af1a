"""How far to fetch beyond what readers ask for: a little after a first read, more the longer one reads on in order."""

from __future__ import annotations

MAX_STREAMS = 16


class _Stream:
    __slots__ = ("ahead", "position", "window")

    def __init__(self, position: int, ahead: int, window: int) -> None:
        self.position = position
        """The chunk after the last one read."""
        self.ahead = ahead
        """The chunk after the last one fetched for it."""
        self.window = window


class ReadAhead:
    """Of one layer: several readers in order, each known by where it would read next."""

    def __init__(self, first: int, most: int) -> None:
        """In chunks: the window after a first read, and the longest."""
        self._first, self._most = first, most
        self._streams: list[_Stream] = []
        """The one that read last is last."""

    def after(self, first: int, end: int) -> tuple[int, int]:
        """Chunks first..end were asked for; the range to fetch beyond them, which may be empty."""
        for stream in reversed(self._streams):
            if stream.position - 1 <= first <= stream.ahead:
                self._streams.remove(stream)
                self._streams.append(stream)
                return self._go_on(stream, end)
        stream = _Stream(end, end + self._first, self._first)
        self._streams.append(stream)
        del self._streams[:-MAX_STREAMS]
        return end, stream.ahead

    def _go_on(self, stream: _Stream, end: int) -> tuple[int, int]:
        stream.position = max(stream.position, end)
        if stream.ahead - stream.position > stream.window // 2:
            return stream.ahead, stream.ahead
        stream.window = min(max(stream.window * 2, 1), self._most)
        start = max(stream.ahead, stream.position)
        stream.ahead = start + stream.window
        return start, stream.ahead
