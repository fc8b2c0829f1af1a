"""What a call gives and takes, kept for its step."""

from __future__ import annotations

import hashlib

from libdsec.protocol.frames import STDERR, STDOUT
from libdsec.protocol.steps import MAX_RECORDED_OUTPUT


class Recorder:
    """Sits beside a call: is told each DATA as it passes. Payloads are kept by reference, never copied."""

    __slots__ = ("_digest", "size", "stderr", "stdout")

    def __init__(self) -> None:
        self.stdout: list[bytes] = []
        self.stderr: list[bytes] = []
        self.size = 0
        """Bytes of both streams so far; above MAX_RECORDED_OUTPUT they are only counted."""
        self._digest: hashlib._Hash | None = None

    def output(self, stream: int, payload: bytes) -> None:
        self.size += len(payload)
        if self.size > MAX_RECORDED_OUTPUT:
            self.stdout = []
            self.stderr = []
        elif not payload:
            return
        elif stream == STDOUT:
            self.stdout.append(payload)
        elif stream == STDERR:
            self.stderr.append(payload)

    def input(self, payload: bytes) -> None:
        if self._digest is None:
            self._digest = hashlib.sha256()
        self._digest.update(payload)

    @property
    def input_digest(self) -> bytes:
        """SHA-256 of the input; empty where there was none."""
        return b"" if self._digest is None else self._digest.digest()

    @property
    def opaque(self) -> str:
        """Why the output is not recorded; empty where it is."""
        if self.size <= MAX_RECORDED_OUTPUT:
            return ""
        return f"it gave {self.size} bytes, of which {MAX_RECORDED_OUTPUT} are recorded at most"
