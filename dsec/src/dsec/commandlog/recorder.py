"""What a call gives and takes, kept for its step."""

from __future__ import annotations

import hashlib

from libdsec.protocol.frames import STDERR, STDOUT
from libdsec.protocol.steps import MAX_RECORDED_OUTPUT

MAX_HELD = 512 * 1024 * 1024


class Held:
    """Bytes that the recorders of a node hold together, and their bound."""

    def __init__(self, limit: int = MAX_HELD) -> None:
        self.limit = limit
        self.size = 0


class Recorder:
    """Sits beside a call: is told each DATA as it passes. Payloads are kept by reference, never copied.

    Whoever made it closes it when the outcome is recorded, or never will be."""

    __slots__ = ("_digest", "_full", "_held", "_own", "size", "stderr", "stdout")

    def __init__(self, held: Held | None = None) -> None:
        """`held`: shared by all recorders that are bounded together. Output beyond its bound is not recorded."""
        self.stdout: list[bytes] = []
        self.stderr: list[bytes] = []
        self.size = 0
        """Bytes of both streams so far, kept or not."""
        self._held = held or Held()
        self._own = 0
        self._full = False
        self._digest: hashlib._Hash | None = None

    def output(self, stream: int, payload: bytes) -> None:
        size = len(payload)
        self.size += size
        if not size or self._full:
            return
        if self.size > MAX_RECORDED_OUTPUT or self._held.size + size > self._held.limit:
            self._full = True
            self.close()
            return
        if stream == STDOUT:
            self.stdout.append(payload)
        elif stream == STDERR:
            self.stderr.append(payload)
        else:
            return
        self._own += size
        self._held.size += size

    def input(self, payload: bytes) -> None:
        if self._digest is None:
            self._digest = hashlib.sha256()
        self._digest.update(payload)

    def close(self) -> None:
        """Let go of the output. Idempotent."""
        self._held.size -= self._own
        self._own = 0
        self.stdout = []
        self.stderr = []

    @property
    def input_digest(self) -> bytes:
        """SHA-256 of the input; empty where there was none."""
        return b"" if self._digest is None else self._digest.digest()

    @property
    def opaque(self) -> str:
        """Why the output is not recorded; empty where it is."""
        if not self._full:
            return ""
        if self.size > MAX_RECORDED_OUTPUT:
            return f"it gave {self.size} bytes of output, of which {MAX_RECORDED_OUTPUT} are recorded at most"
        return f"it gave {self.size} bytes of output while calls of this node held {self._held.limit} to be recorded"
