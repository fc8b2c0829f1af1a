"""Reading a command log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from .._transport.channel import Channel
from .._transport.codec import codec
from ..protocol.calls import METHODS
from ..protocol.errors import ClientClosedError, DSecError, OutcomeUnknownError, UnavailableError, WireError
from ..protocol.frames import STDOUT
from ..protocol.steps import LogOutputRequest, LogReadRequest, OutputRecord, Step

_SILENCE_S = 60.0
_FRUITLESS = 3
"""So often a reading may be lost without any progress in between."""

_SHOWN = 300

_decode_steps = msgspec.msgpack.Decoder(tuple[Step, ...]).decode


async def pages(channel: Channel, request: LogReadRequest) -> AsyncGenerator[Sequence[Step]]:
    """The steps asked for, in pieces, in the order of the log. A lost connection costs nothing."""
    losses = Losses(channel)
    while True:
        try:
            async with aclosing(_pages(channel, request, _SILENCE_S)) as reading:
                async for page in reading:
                    losses.progress()
                    rest = _rest(request, page)
                    yield page
                    if rest is None:
                        return
                    request = rest
            return
        except (OutcomeUnknownError, UnavailableError) as error:
            await losses.another(error)


class Losses:
    """How often a reading that was lost begins again."""

    def __init__(self, channel: Channel) -> None:
        self._outage = channel.outage()
        self._fruitless = 0

    def progress(self) -> None:
        """Something was read."""
        self._outage.restart()
        self._fruitless = 0

    async def another(self, error: DSecError) -> None:
        """Wait before the next try. A server that ends has a successor soon, and counts by its time alone.

        :raises DSecError: it was enough.
        """
        self._fruitless += error.details.get("closing") is not True
        if self._fruitless == _FRUITLESS:
            raise error
        await self._outage.pause(error)


async def read_steps(channel: Channel, request: LogReadRequest, outputs: bool) -> tuple[Step, ...]:
    """All the steps asked for, with `outputs` each with all of its output."""
    found: list[Step] = []
    async with aclosing(pages(channel, request)) as reading:
        async for page in reading:
            found += page
    if outputs:
        found = [await with_output(channel, request.scope, step) for step in found]
    return tuple(found)


async def follow(channel: Channel, request: LogReadRequest) -> AsyncGenerator[Step]:
    """Each step as it ends.

    :raises OutcomeUnknownError: the connection was lost.
    """
    async with aclosing(_pages(channel, msgspec.structs.replace(request, follow=True), None)) as reading:
        async for page in reading:
            for step in page:
                yield step


async def with_output(channel: Channel, scope: str, step: Step) -> Step:
    """The step with all of its recorded output in it; of an opaque one that is what it has."""
    if step.opaque or not (_absent(step.stdout) or _absent(step.stderr)):
        return step
    answer = await channel.collect(
        "log.output",
        LogOutputRequest(scope, step.track, step.n),
        extend=True,
        bound=max(step.stdout.size, step.stderr.size),
        repeatable=True,
    )
    for record, data in ((step.stdout, answer.stdout), (step.stderr, answer.stderr)):
        if len(data) != record.size:
            raise WireError(f"cannot read the output of step {step.track}#{step.n}: {len(data)} of {record.size} bytes")
    return msgspec.structs.replace(
        step,
        stdout=OutputRecord(len(answer.stdout), answer.stdout),
        stderr=OutputRecord(len(answer.stderr), answer.stderr),
    )


async def recorded_request(channel: Channel, scope: str, step: Step) -> str:
    """What was recorded at a step, in words; of what cannot be read the method alone."""
    request = LogReadRequest(scope, after=step.seq - 1, track=step.track, limit=1)
    try:
        async with aclosing(pages(channel, request)) as reading:
            async for page in reading:
                for found in page:
                    if found.seq == step.seq:
                        return in_words(found.method, msgspec.msgpack.decode(found.request))
    except (DSecError, msgspec.DecodeError) as error:
        return f"{step.method} (its arguments cannot be read: {error})"
    return step.method


def in_words(method: str, args: Any) -> str:
    """A request, shortened: `exec(argv=['true'], cwd='/tmp')`."""
    fields: dict[str, Any] = args if isinstance(args, dict) else msgspec.to_builtins(args)
    default = METHODS[method][0] if method in METHODS else None
    known = {f.name: f.default for f in msgspec.structs.fields(default)} if default is not None else {}
    shown = ", ".join(
        f"{name}={_shortened(repr(value))}"
        for name, value in fields.items()
        if name != "sandbox" and value != known.get(name, msgspec.NODEFAULT)
    )
    return f"{method}({_shortened(shown)})"


async def _pages(channel: Channel, request: LogReadRequest, timeout: float | None) -> AsyncGenerator[Sequence[Step]]:
    exchange = await channel.stream("log.read", request, (STDOUT,))
    try:
        while (chunk := await exchange.incoming[STDOUT].get(timeout)) is not None:
            try:
                yield _decode_steps(chunk)
            except msgspec.DecodeError as error:
                raise WireError(f"cannot read the steps of a log: {error}") from None
        codec("log.read").decode(await exchange.answer(timeout))
    finally:
        exchange.abandon(ClientClosedError("cannot read further: this reading was left"))


def _rest(request: LogReadRequest, page: Sequence[Step]) -> LogReadRequest | None:
    """What is still to come after `page`; None is nothing."""
    if not page:
        return request
    limit = request.limit - len(page) if request.limit else 0
    if request.limit and limit <= 0:
        return None
    # with `last` the first page has told where they begin: those that have come since are none of them
    return msgspec.structs.replace(request, after=page[-1].seq, limit=limit, last=False)


def _absent(record: OutputRecord) -> bool:
    return record.data is None and record.size > 0


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
