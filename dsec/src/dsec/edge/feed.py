"""What a client says of its call, on the way to the sandbox.

Input of a call that can be replayed is gathered first: the call is sent when all of its input is here, or as much as is
gathered at most. A client that goes away before that, and a server that dies before it, have started nothing, and
the call can be said again from its beginning. Interactive input passes at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dsec.bus import Answerer, Caller
from dsec.commandlog import Recorder
from libdsec.protocol.frames import DATA_CHUNK, END, STDIN, WINDOW

MAX_GATHERED = 16 * 1024 * 1024
"""Bytes of input that are here at most, of one call."""


class Feed:
    """The answering end that a client gets."""

    __slots__ = (
        "_answerer",
        "_caller",
        "_gathered",
        "_gathers",
        "_held",
        "_input",
        "_input_ended",
        "_live",
        "_on_given_up",
        "_owed",
        "_recorder",
        "_room",
        "_start",
        "_stir",
        "_unread",
        "interrupted",
    )

    def __init__(
        self,
        caller: Caller,
        recorder: Recorder,
        *,
        live: bool,
        gathers: bool,
        on_given_up: Callable[[], None],
        stir: Callable[[], None],
    ) -> None:
        """`live`: the call makes no sense without its client; `gathers`: it has input that is gathered. `on_given_up`
        is called when it is given up before anything was sent: nothing will be. `stir` is called when its client says
        something to what may stand still."""
        self._caller = caller
        self._recorder = recorder
        self._live = live
        self._gathers = gathers
        self._on_given_up = on_given_up
        self._stir = stir
        self._answerer: Answerer | None = None
        self._start: Callable[[], None] | None = None
        self._held: list[Callable[[Answerer], None]] = []
        self._input: deque[tuple[bytes, int]] = deque()
        self._gathered = 0
        self._owed = 0
        self._room = WINDOW
        self._input_ended = False
        self._unread: dict[int, int] = {}
        self.interrupted = False
        """It was told to end before its time: by its client, or because the rest of its input never comes."""

    @property
    def input_digest(self) -> bytes:
        """SHA-256 of the input, where all of it came; a call that ended before has none."""
        return self._recorder.input_digest if self._input_ended else b""

    def when_gathered(self, start: Callable[[], None]) -> None:
        """Call `start` once the call can be sent."""
        self._start = start
        self._start_if_gathered()

    def open(self, answerer: Answerer) -> None:
        """The call was sent: what has waited follows it."""
        self._answerer = answerer
        held, self._held = self._held, []
        for say in held:
            say(answerer)
        self._pump()

    def acknowledge(self) -> None:
        """The answer is in the log: the sandbox need not keep it any more."""
        acknowledge = getattr(self._answerer, "acknowledge", None)
        if acknowledge is not None:
            acknowledge()

    def consumed(self, stream: int, amount: int) -> None:
        """The sandbox has taken input and has room for so much more."""
        if not self._gathers or stream != STDIN:
            self._caller.credit(stream, amount)
            return
        self._room += amount
        self._pump()

    def data(self, stream: int, payload: bytes, flags: int) -> None:
        if stream == STDIN:
            self._recorder.input(payload)
            self._input_ended = bool(flags & END)
            if self._gathers:
                self._gather(payload, flags)
                return
        self._say(lambda answerer: answerer.data(stream, payload, flags))

    def passed(self, stream: int, amount: int) -> None:
        """So much output is on its way to the client, which has not granted it again yet."""
        self._unread[stream] = self._unread.get(stream, 0) + amount

    def credit(self, stream: int, amount: int) -> None:
        self._unread[stream] = self._unread.get(stream, 0) - amount
        if self._answerer is not None:
            self._answerer.credit(stream, amount)

    def event(self, payload: bytes) -> None:
        self._say(lambda answerer: answerer.event(payload))

    def cancel(self) -> None:
        """Its client wants it no more, but waits for its end."""
        if self._live:
            self._say(lambda answerer: answerer.cancel())
        else:
            self._interrupt()

    def abandon(self) -> None:
        """Its client has gone. What needs it ends; everything else goes on, and is recorded."""
        if self._live or (self._gathers and not self._input_ended):
            self._interrupt()
            return
        # what was on its way to it counts as read, or the call would wait for the credit
        for stream, unread in list(self._unread.items()):
            if unread > 0:
                self.credit(stream, unread)

    def cut(self) -> None:
        """The rest of its input never comes."""
        self._interrupt()

    def _interrupt(self) -> None:
        self.interrupted = True
        if self._answerer is not None:
            self._answerer.cancel()
        else:
            self._on_given_up()

    def _say(self, say: Callable[[Answerer], None]) -> None:
        if self._answerer is not None:
            say(self._answerer)
            self._stir()
        else:
            self._held.append(say)

    def _gather(self, payload: bytes, flags: int) -> None:
        self._input.append((payload, flags & END))
        self._gathered += len(payload)
        self._owed += len(payload)
        self._grant()
        self._start_if_gathered()
        self._pump()

    def _grant(self) -> None:
        """The client may send on while there is room here."""
        if self._owed and not self._input_ended and self._gathered < MAX_GATHERED:
            owed, self._owed = self._owed, 0
            self._caller.credit(STDIN, owed)

    def _start_if_gathered(self) -> None:
        if self._start is not None and (
            not self._gathers or self._input_ended or self._gathered > MAX_GATHERED - WINDOW
        ):
            start, self._start = self._start, None
            start()

    def _pump(self) -> None:
        """Send what the sandbox has room for."""
        answerer = self._answerer
        while answerer is not None and self._input:
            payload, flags = self._input[0]
            if payload and not self._room:
                return
            piece = payload[: min(self._room, DATA_CHUNK)]
            if len(piece) < len(payload):
                self._input[0] = (payload[len(piece) :], flags)
                flags = 0
            else:
                self._input.popleft()
            self._room -= len(piece)
            self._gathered -= len(piece)
            answerer.data(STDIN, piece, flags)
            self._grant()
