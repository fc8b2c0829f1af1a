"""Tracks: the numbers of steps, and the way of a call to its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from .._transport.channel import DEFAULT_TIMEOUT_S, Channel, Sending
from .._transport.codec import Codec, codec
from .._transport.exchange import Answer, EventHandler
from .._transport.outage import Outage
from .._transport.streaming import Streaming
from ..protocol.errors import DSecError, InvalidArgumentError, LeaseLostError, UnavailableError
from ..protocol.steps import CLI, CREATE, KEY_PREFIX, OTHER, Step, StepTag, check_tag, request_digest
from .lease import Lease
from .numbers import Numbers
from .recording import NOTHING, Recording


class Scope:
    """One command log as this client writes it."""

    def __init__(
        self,
        channel: Channel,
        name: str | None,
        *,
        lease: Lease | None = None,
        recording: Recording | None = None,
    ) -> None:
        """`name` is None of a handle that does not know to which log its sandbox belongs."""
        self.channel = channel
        self.name = name
        self.lease = lease
        self.recording = recording
        self.epoch = lease.epoch if lease is not None else 0
        self._tracks: dict[str, Track] = {}

    def track(self, name: str) -> Track:
        """The track of a name; the same one each time, so that no number is given twice.

        Kept for the life of the log, and so for names alone that a program can say again: those of its own, and of
        what its keys have made.
        """
        return _kept(self._tracks, self, name)


@dataclass(slots=True)
class Begun:
    """A call that has its place in the log."""

    how: Codec
    tag: StepTag
    args: msgspec.Struct
    payload: bytes
    """Of the CALL, empty where it is replayed."""
    step: Step | None
    """The recorded one that it is answered from."""


class Track:
    """Where the calls of a handle go."""

    __slots__ = ("_below", "_numbers", "_recorded", "channel", "name", "numbered", "scope")

    def __init__(self, scope: Scope, name: str, numbered: bool) -> None:
        self.scope = scope
        self.channel = scope.channel
        self.name = name
        self.numbered = numbered
        """False: the node numbers."""
        self._recorded = scope.recording.track(name) if scope.recording is not None and numbered else NOTHING
        self._numbers = Numbers()
        self._below: dict[str, Track] = {}
        """Those of names, which can be said as long as there is a handle of this one."""

    def named(self, name: str) -> Track:
        """The track `name` below this one; where the node numbers, this one.

        :raises InvalidArgumentError: not a name of a track.
        """
        return _kept(self._below, self.scope, f"{self.name}/{checked_name(name)}") if self.numbered else self

    def of(self, tag: StepTag) -> Track:
        """The track of what step `tag` has made, which lives as long as handles of it: no other call has this step, so
        nobody can come to its track again. Only by a key the same call can be made twice."""
        if not tag.n:
            return self
        name = f"{tag.track}/{tag.n}"
        return _made(self.scope, name) if tag.track == self.name else self.scope.track(name)

    async def call(
        self,
        method: str,
        args: msgspec.Struct,
        *,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        repeatable: bool = False,
        key: str | None = None,
    ) -> Any:
        """The answer of a call without streams."""
        return (await self.collect(method, args, timeout=timeout, repeatable=repeatable, key=key)).value

    async def make(
        self,
        method: str,
        args: msgspec.Struct,
        *,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        key: str | None = None,
    ) -> tuple[Any, Track]:
        """As `call`, of what makes something whose steps have a track of their own; with that track."""
        begun = await self.begin(method, args, key)
        answer = await self.end(begun, timeout)
        return answer.value, self.of(begun.tag)

    async def collect(
        self,
        method: str,
        args: msgspec.Struct,
        *,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        extend: bool = False,
        stdin: bytes | None = None,
        bound: int = 0,
        repeatable: bool = False,
        key: str | None = None,
        on_event: EventHandler | None = None,
    ) -> Answer:
        """The answer of a call with its output, as `Channel.collect`: recorded, or given now and recorded. Of a
        recorded one there are no events.

        :raises ReplayDivergedError: another call is recorded at this step.
        :raises OutcomeUnknownError: of the call, or of the recorded step.
        :raises UnsupportedOperationError: the recorded step cannot be replayed.
        :raises LeaseLostError: somebody else holds the log now.
        """
        return await self.end(await self.begin(method, args, key), timeout, extend, stdin, bound, repeatable, on_event)

    async def stream(self, method: str, args: msgspec.Struct, streams: tuple[int, ...]) -> Streaming:
        """A call with data under way both ways, which cannot be replayed.

        :raises UnsupportedOperationError: it is recorded.
        """
        begun = await self.begin(method, args)
        if begun.step is not None:
            why = begun.step.opaque or "it was a stream, of which the log has not when what came"
            raise self.recording.refused(begun.step, why)
        return await self.start(begun, streams)

    async def start(self, begun: Begun, streams: tuple[int, ...]) -> Streaming:
        """Send a call with data under way."""
        n = begun.tag.n
        if not self._ordered(begun):
            return await self.channel.start(begun.how, begun.payload, streams)
        self._numbers.begin(n)
        try:
            return await self.channel.start(
                begun.how, begun.payload, streams, self._numbers, n, lambda error: self._failed(begun, error)
            )
        except BaseException:  # nothing was sent
            self._numbers.give_back(n)
            raise
        finally:
            self._numbers.end(n)

    async def begin(self, method: str, args: msgspec.Struct, key: str | None = None) -> Begun:
        """Give a call its place. Nothing is waited for, except for the words of a difference.

        :raises InvalidArgumentError: the arguments cannot be sent; no number is used.
        """
        scope = self.scope
        if scope.lease is not None:
            scope.lease.check()
        how = codec(method)
        if key is not None:
            name, n, recorded = _key_track(key), 1, NOTHING
            if scope.recording is not None:
                recorded = scope.recording.track(name)
        else:
            name, n, recorded = self.name, self._numbers.next() if self.numbered else 0, self._recorded
        step = recorded.get(n)
        if step is None:
            begun = self._new(how, StepTag(name, n, scope.epoch), args)
        else:
            begun = await self._met(how, StepTag(name, n, scope.epoch), args, step, self.recording)
        return begun

    def _new(self, how: Codec, tag: StepTag, args: msgspec.Struct) -> Begun:
        payload = how.encode(args, tag)
        self._use(tag)
        return Begun(how, tag, args, payload, None)

    async def _met(self, how: Codec, tag: StepTag, args: msgspec.Struct, step: Step, recording: Recording) -> Begun:
        """Of a call that comes where a step is recorded."""
        try:
            digest = request_digest(how.name, args)
        except (TypeError, ValueError, OverflowError) as error:
            raise how.unsendable(error) from None
        if digest != step.digest:
            self._use(tag)
            raise await recording.difference(step, how.name, args)
        if step.state == "running":
            return self._new(how, tag, args)  # the node joins it, or has its outcome by now
        if step.state == "unknown":
            if not recording.again:
                self._use(tag)
                raise recording.unknown(step)
            return self._new(how, msgspec.structs.replace(tag, again=True), args)
        self._use(tag)
        return Begun(how, tag, args, b"", step)

    async def end(
        self,
        begun: Begun,
        timeout: float | None,
        extend: bool = False,
        stdin: bytes | None = None,
        bound: int = 0,
        repeatable: bool = False,
        on_event: EventHandler | None = None,
    ) -> Answer:
        """The answer of a call that has its place. As `collect`."""
        if begun.step is not None:
            with self.reading(begun):
                return await self.recording.answer(begun.how, begun.step, stdin)
        repeatable = repeatable or begun.tag.n > 0
        sending = Sending(begun.how, begun.payload, timeout, extend, stdin, bound, repeatable, on_event)
        if begun.tag.again:
            return await self._send_again(begun, sending)
        return await self._send(begun, sending)

    @contextmanager
    def reading(self, *begun: Begun) -> Iterator[None]:
        """Around the reading of recorded outputs. No recorded outcome is an `UnavailableError`: one could not be read,
        and what was `begun` may be said again."""
        try:
            yield
        except UnavailableError:
            for one in begun:
                if one.step is not None and self._ordered(one):
                    self._numbers.give_back(one.tag.n)
            raise

    async def _send_again(self, begun: Begun, sending: Sending) -> Answer:
        """Of a step whose recorded outcome is unknown. The caller has chosen one more run: where nobody knows how that
        ended either, only another choice gives it a third."""
        sending.retold = begun.how.encode(begun.args, msgspec.structs.replace(begun.tag, again=False))
        surely_not = False
        try:
            return await self._send(begun, sending)
        except DSecError as error:
            surely_not = error.retry != "never"
            raise
        finally:
            if sending.sent and not surely_not:
                self.recording.run_again(begun.tag)

    async def _send(self, begun: Begun, sending: Sending) -> Answer:
        if not self._ordered(begun):
            return await self.channel.send(sending)
        return await self._send_numbered(begun, sending)

    async def _send_numbered(self, begun: Begun, sending: Sending) -> Answer:
        numbers = self._numbers
        sending.order, sending.n = numbers, begun.tag.n
        numbers.begin(begun.tag.n)
        try:
            return await self._send_in_order(begun, sending)
        except asyncio.CancelledError:
            if not sending.sent:
                numbers.give_back(begun.tag.n)
            raise
        except DSecError as error:
            self._failed(begun, error)
            raise
        finally:
            numbers.end(begun.tag.n)

    def _failed(self, begun: Begun, error: DSecError) -> None:
        """A call that has a number of this track has ended so."""
        self._numbers.end(begun.tag.n)
        known = _known(error, begun.tag)
        if known is not None:
            self._numbers.known(known)
        elif error.retry != "never":  # it surely did not run, and is no step
            self._numbers.give_back(begun.tag.n)
        if isinstance(error, LeaseLostError) and self.scope.lease is not None:
            self.scope.lease.lose(error)

    async def _send_in_order(self, begun: Begun, sending: Sending) -> Answer:
        outage: Outage | None = None
        while True:
            try:
                return await self.channel.send(sending)
            except InvalidArgumentError as error:
                known = _known(error, begun.tag)
                if known is None:
                    raise
                sending.sent = False
                outage = outage or self.channel.outage()
                if not self._numbers.waits(begun.tag.n, known):
                    sending.n = self._numbers.place(begun.tag.n, known)
                    begun.tag = msgspec.structs.replace(begun.tag, n=sending.n, again=False)
                    sending.payload = begun.how.encode(begun.args, begun.tag)
                self._numbers.lost(sending.n)
                await outage.pause(error)

    @property
    def recording(self) -> Recording:
        """Of the log that this track belongs to, where a recorded step was met."""
        assert self.scope.recording is not None  # only there a step can be met
        return self.scope.recording

    def _use(self, tag: StepTag) -> None:
        if tag.track == self.name and tag.n:
            self._numbers.use(tag.n)

    def _ordered(self, begun: Begun) -> bool:
        """Whether the call has a number of this track."""
        return self.numbered and begun.tag.track == self.name


def _made(scope: Scope, name: str) -> Track:
    check_tag(StepTag(name))
    return Track(scope, name, name not in (CLI, OTHER))


def _kept(tracks: dict[str, Track], scope: Scope, name: str) -> Track:
    """The track in `tracks`, where it is made the first time."""
    found = tracks.get(name)
    if found is None:
        found = tracks[name] = _made(scope, name)
    return found


def checked_name(name: str) -> str:
    """The name of a track that a program asks for, itself.

    :raises InvalidArgumentError: it could be that of a track which steps make, or of a reserved one.
    """
    if not name or "/" in name or name.isdecimal() or name.startswith(KEY_PREFIX) or name in (CLI, OTHER, CREATE):
        raise InvalidArgumentError(
            f"cannot use track {name!r}: it must not be empty, a number, {CLI!r}, {OTHER!r} or {CREATE!r}, have a `/`, "
            f"or begin with {KEY_PREFIX!r}",
            field="track",
        )
    return name


def _key_track(key: str) -> str:
    name = KEY_PREFIX + key
    if not key:
        raise InvalidArgumentError("cannot use an empty key", field="key")
    check_tag(StepTag(name, 1))
    return name


def _known(error: DSecError, tag: StepTag) -> int | None:
    """The last number that the node knows, where it refused `tag` for leaving numbers out."""
    last = error.details.get("last")
    return last if error.details.get("field") == "step.n" and isinstance(last, int) and 0 <= last < tag.n - 1 else None
