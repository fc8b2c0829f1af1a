"""Command logs from outside: read without being held, and recorded requests said to another sandbox.

This is for the command line, `dsec log` and `dsec replay`, and none of the SDK's public names: nothing here is
exported, has a blocking twin, or is promised to stay. Programs read logs by `steps` and `follow_steps` of handles.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import msgspec

from ._arrays import arrays
from ._steps.reading import Losses, follow, pages, with_output
from ._transport.channel import Channel
from ._transport.codec import codec
from .client import DSecClient
from .protocol.calls import SandboxRequest
from .protocol.errors import (
    ClientClosedError,
    DeadlineExceededError,
    OutcomeUnknownError,
    UnavailableError,
    WireError,
)
from .protocol.files import FileInfo
from .protocol.frames import STDERR, STDOUT
from .protocol.ids import is_sandbox_id
from .protocol.spec import SandboxInfo
from .protocol.steps import (
    CLI,
    MAX_RECORDED_OUTPUT,
    LogOutputRequest,
    LogReadRequest,
    OutputRecord,
    Step,
    StepTag,
)

_REMEMBERED = 65_536

_decode_entries = msgspec.msgpack.Decoder(tuple[FileInfo, ...]).decode


class CommandLog:
    """The log of a rollout, or what a sandbox has in its own or its rollout's. Reading it takes no lease."""

    def __init__(self, channel: Channel, scope: str, sandbox: str | None = None) -> None:
        self._channel = channel
        self._sandbox = sandbox
        self.scope = scope

    @classmethod
    async def find(cls, client: DSecClient, name: str) -> CommandLog:
        """Of a rollout's name or a sandbox's id. A rollout that nobody knows has an empty log.

        :raises SandboxNotFoundError: the sandbox is forgotten, and has no log of its own.
        """
        channel = client._channel
        log = cls(channel, name)
        if not is_sandbox_id(name):
            return log
        async with aclosing(log.pages(limit=1, requests=False)) as reading:
            async for page in reading:
                if page:
                    return log
        # asking after the sandbox is a step itself, so that it comes last
        info: SandboxInfo = await channel.call("sandbox.inspect", SandboxRequest(name), step=StepTag(CLI))
        rollout = info.rollout or info.spec.rollout
        return log if rollout is None else cls(channel, rollout, name)

    def pages(
        self,
        *,
        after: int = 0,
        track: str | None = None,
        limit: int = 0,
        last: bool = False,
        requests: bool = True,
    ) -> AsyncGenerator[Sequence[Step]]:
        """The steps whose `seq` is above `after`, in pieces, oldest first: all, the first or the `last` `limit`."""
        request = LogReadRequest(self.scope, after, track, self._sandbox, limit, last, requests)
        return pages(self._channel, request)

    async def follow(
        self, *, after: int = 0, track: str | None = None, limit: int = 0, last: bool = False
    ) -> AsyncGenerator[Step]:
        """What `pages` has, then each step as it ends. One that runs comes twice: now, and when it has ended.

        A lost connection costs nothing but time.
        :raises UnavailableError, OutcomeUnknownError: it is lost again and again.
        """
        request = LogReadRequest(self.scope, after, track, self._sandbox, limit, last)
        told = _Told(after)
        losses = Losses(self._channel)
        while True:
            try:
                async with aclosing(follow(self._channel, request)) as following:
                    async for step in following:
                        losses.progress()
                        if told.news(step):
                            yield step
                return
            except (OutcomeUnknownError, UnavailableError) as error:
                await losses.another(error)
                if told.any:
                    request = LogReadRequest(self.scope, told.behind, track, self._sandbox)

    async def whole(self, step: Step) -> Step:
        """The step with all of its recorded output in it."""
        return await with_output(self._channel, self.scope, step)

    async def step(self, track: str, n: int) -> Step:
        """One step, with all of its recorded output.

        :raises NotFoundError: it is not recorded.
        """
        request = LogOutputRequest(self.scope, track, n)
        answer = await self._channel.collect(
            "log.output", request, extend=True, bound=MAX_RECORDED_OUTPUT, repeatable=True
        )
        found: Step = answer.value
        async with aclosing(self.pages(after=found.seq - 1, track=track, limit=1)) as reading:
            async for page in reading:
                for entry in page:
                    if entry.seq == found.seq:
                        found = entry
        if found.opaque:
            return found
        out, err = answer.stdout, answer.stderr
        return msgspec.structs.replace(found, stdout=OutputRecord(len(out), out), stderr=OutputRecord(len(err), err))


class _Told:
    """Which steps a reader has, so that one that begins again is told the others alone."""

    def __init__(self, after: int) -> None:
        self._open: set[int] = set()
        self._ended: set[int] = set()
        self._last = after
        self.any = False

    @property
    def behind(self) -> int:
        """Above this seq lies whatever may be news."""
        return min(self._open, default=self._last + 1) - 1

    def news(self, step: Step) -> bool:
        if step.seq in self._ended or (step.state == "running" and step.seq in self._open):
            return False
        self.any = True
        self._last = max(self._last, step.seq)
        if step.state == "running":
            self._open.add(step.seq)
            return True
        self._open.discard(step.seq)
        self._ended.add(step.seq)
        if len(self._ended) > _REMEMBERED:
            self._forget()
        return True

    def _forget(self) -> None:
        """What a second reading would not tell again. A step that ran for all of this time was withdrawn, or its end
        is told twice."""
        if len([seq for seq in self._ended if seq > self.behind]) > _REMEMBERED // 2:
            self._open.discard(min(self._open, default=0))
        behind = self.behind
        self._ended = {seq for seq in self._ended if seq > behind}


async def say(
    client: DSecClient,
    method: str,
    args: msgspec.Struct,
    take: Callable[[int, bytes], None],
    *,
    stdin: bytes | None = None,
    timeout: float,
) -> msgspec.Struct:
    """A request as it is, on track `cli`; `take` gets the pieces of streams 2 and 3 as they come. The answer.

    :raises DeadlineExceededError: it had not ended after `timeout` seconds, and was cancelled.
    """
    how = codec(method)
    exchange = await client._channel.stream(method, args, (STDOUT, STDERR), step=StepTag(CLI))
    out, err = exchange.incoming[STDOUT], exchange.incoming[STDERR]
    try:
        async with asyncio.timeout(timeout):
            if stdin is not None:
                await exchange.write(stdin, end=True)
            while True:
                await exchange.until(lambda: bool(out.chunks or err.chunks) or exchange.ended)
                for number, stream in ((STDOUT, out), (STDERR, err)):
                    while (chunk := stream.take()) is not None:
                        take(number, chunk)
                if exchange.ended:
                    break
        answer: msgspec.Struct = how.decode(await exchange.answer())
        return answer
    except TimeoutError:
        raise DeadlineExceededError(
            f"cannot wait longer for {method}: it had not ended after {timeout:g} s and was cancelled",
            method=method,
            timeout_s=timeout,
        ) from None
    finally:
        exchange.abandon(ClientClosedError(f"cannot go on with {method}: it was left"))


def entries(output: bytes) -> tuple[FileInfo, ...]:
    """What the output of a `file.list` holds.

    :raises WireError: it is none.
    """
    found: list[FileInfo] = []
    for piece in arrays((output,)):
        try:
            found += _decode_entries(piece)
        except msgspec.DecodeError as error:
            raise WireError(f"cannot read the output of file.list: {error}") from None
    return tuple(found)
