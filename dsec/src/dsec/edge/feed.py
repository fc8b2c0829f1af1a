"""What a client says of its call, on the way to the sandbox: held back while the call has not been sent yet."""

from __future__ import annotations

from collections.abc import Callable

from dsec.bus import Answerer
from dsec.commandlog import Recorder
from libdsec.protocol.frames import END, STDIN


class Feed:
    """The answering end that a client gets. A window bounds what it can hold: the client has no further credit."""

    __slots__ = ("_answerer", "_held", "_input_ended", "_recorder")

    def __init__(self, recorder: Recorder) -> None:
        self._answerer: Answerer | None = None
        self._held: list[Callable[[Answerer], None]] = []
        self._recorder = recorder
        self._input_ended = False

    @property
    def input_digest(self) -> bytes:
        """SHA-256 of the input, where all of it came; a call that ended before has none."""
        return self._recorder.input_digest if self._input_ended else b""

    def open(self, answerer: Answerer) -> None:
        """The call was sent: what has waited follows it."""
        self._answerer = answerer
        held, self._held = self._held, []
        for say in held:
            say(answerer)

    def acknowledge(self) -> None:
        """The answer is in the log: the sandbox need not keep it any more."""
        acknowledge = getattr(self._answerer, "acknowledge", None)
        if acknowledge is not None:
            acknowledge()

    def data(self, stream: int, payload: bytes, flags: int) -> None:
        if stream == STDIN:
            self._recorder.input(payload)
            self._input_ended = bool(flags & END)
        if self._answerer is not None:
            self._answerer.data(stream, payload, flags)
        else:
            self._held.append(lambda answerer: answerer.data(stream, payload, flags))

    def credit(self, stream: int, amount: int) -> None:
        if self._answerer is not None:
            self._answerer.credit(stream, amount)

    def event(self, payload: bytes) -> None:
        if self._answerer is not None:
            self._answerer.event(payload)
        else:
            self._held.append(lambda answerer: answerer.event(payload))

    def cancel(self) -> None:
        if self._answerer is not None:
            self._answerer.cancel()
        else:
            self._held.append(lambda answerer: answerer.cancel())

    def abandon(self) -> None:
        if self._answerer is not None:
            self._answerer.abandon()
        else:
            self._held.append(lambda answerer: answerer.abandon())


class Unheard:
    """The caller of a call whose client has gone with an earlier edge: its output counts as read."""

    __slots__ = ("_answerer",)

    def __init__(self, answerer: Answerer) -> None:
        self._answerer = answerer

    def data(self, stream: int, payload: bytes, flags: int) -> bool:
        if payload:
            self._answerer.credit(stream, len(payload))
        return True

    def when_drained(self, resume: Callable[[], None]) -> None:
        resume()

    def credit(self, stream: int, amount: int) -> None: ...

    def event(self, payload: bytes) -> None: ...

    def result(self, payload: bytes) -> None: ...

    def error(self, payload: bytes) -> None: ...
