"""The recorded steps of an attached log, by track and number, and what each of them is to a program that runs again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, TypeAlias

import msgspec

from .._transport.channel import Channel
from .._transport.codec import Codec, decode_error
from .._transport.exchange import Answer
from ..protocol.errors import (
    DeadlineExceededError,
    DSecError,
    OutcomeUnknownError,
    ReplayDivergedError,
    UnavailableError,
    UnsupportedOperationError,
)
from ..protocol.steps import CLI, CREATE, OTHER, LogReadRequest, Step, StepTag, details, step_name
from .reading import in_words, pages, recorded_request, with_output

OnUnknown = Literal["raise", "again"]
Numbered: TypeAlias = Mapping[int, Step]

NOTHING: Numbered = {}


class Recording:
    """What was there when the log was attached. It holds at most INLINE_OUTPUT bytes of output a step."""

    def __init__(self, channel: Channel, scope: str, on_unknown: OnUnknown) -> None:
        self._channel = channel
        self._tracks: dict[str, dict[int, Step]] = {}
        self.scope = scope
        self.again = on_unknown == "again"
        self.steps = 0
        """How many of them a program that runs again can meet."""
        self.replayed = 0

    async def load(self) -> None:
        """Read the whole log; to be called once."""
        async with aclosing(pages(self._channel, LogReadRequest(self.scope, requests=False))) as reading:
            async for page in reading:
                self._add(page)

    def track(self, name: str) -> Numbered:
        return self._tracks.get(name, NOTHING)

    def run_again(self, tag: StepTag) -> None:
        """The step has run once more, or may have: what it is now the node alone knows."""
        self._tracks[tag.track].pop(tag.n, None)

    def outcome(self, how: Codec, step: Step) -> Any:
        """The decoded RESULT of a step that has one.

        :raises DSecError: the step's own ERROR, marked `replayed` in its details.
        :raises UnsupportedOperationError: it cannot be replayed; says why.
        """
        if step.opaque:
            raise self.refused(step, step.opaque)
        self.replayed += 1
        if step.state == "error":
            error = decode_error(step.answer)
            error.details["replayed"] = True
            raise error
        return how.decode(step.answer)

    async def answer(self, how: Codec, step: Step, stdin: bytes | None) -> Answer:
        """What the call gave, output included. As `outcome`."""
        if stdin is not None:
            self.check_input(step, hashlib.sha256(stdin).digest())
        value = self.outcome(how, step)
        out, err = step.stdout, step.stderr
        if (out.data is None and out.size) or (err.data is None and err.size):
            step = await self._whole(step)
            out, err = step.stdout, step.stderr
        data = out.data or b""
        return Answer(value, data, err.data or b"", (data,), True)

    async def output(self, step: Step) -> bytes:
        """What the call gave on stream 2. :raises UnavailableError: it cannot be read now."""
        return (await self._whole(step)).stdout.data or b""

    async def _whole(self, step: Step) -> Step:
        """The step with its output.

        :raises UnavailableError: the server was lost; what was recorded is so still.
        """
        try:
            return await with_output(self._channel, self.scope, step)
        except (OutcomeUnknownError, DeadlineExceededError) as error:
            name = step_name(step.track, step.n)
            raise UnavailableError(f"cannot read the output of step {name} of {self.scope}: {error}") from None

    def check_input(self, step: Step, digest: bytes) -> None:
        """:raises ReplayDivergedError: the recorded call was sent other input."""
        if step.input_digest and step.input_digest != digest:
            recorded, now = step.input_digest.hex()[:16], digest.hex()[:16]
            raise self._diverged(
                step, f"{step.method} with input of SHA-256 {recorded}...", f"the same with input of SHA-256 {now}..."
            )

    async def difference(self, step: Step, method: str, args: msgspec.Struct) -> ReplayDivergedError:
        """That another request than the recorded one came at a step."""
        expected, got = await recorded_request(self._channel, self.scope, step), in_words(method, args)
        if got == expected:
            got += " with other arguments, where they are shortened here"
        return self._diverged(step, expected, got)

    def unknown(self, step: Step) -> DSecError:
        """That nobody knows how the step ended."""
        return OutcomeUnknownError(
            f"cannot replay step {step_name(step.track, step.n)} of {self.scope}: nobody knows how its {step.method} "
            'ended; look, then attach with on_unknown="again" to run it again',
            **details(self.scope, step.track, step.n),
        )

    def refused(self, step: Step, why: str) -> DSecError:
        """That the step cannot be replayed."""
        return UnsupportedOperationError(
            f"cannot replay step {step_name(step.track, step.n)} of {self.scope}, {step.method}: {why}",
            **details(self.scope, step.track, step.n),
        )

    def _diverged(self, step: Step, expected: str, got: str) -> ReplayDivergedError:
        return ReplayDivergedError(
            f"cannot replay step {step_name(step.track, step.n)} of {self.scope}: recorded is {expected}, now came "
            f"{got}; run the program that was recorded, or begin another rollout",
            **details(self.scope, step.track, step.n),
            expected=expected,
            got=got,
        )

    def _add(self, page: Sequence[Step]) -> None:
        for step in page:
            if step.track not in (CLI, OTHER, CREATE):
                self._tracks.setdefault(step.track, {})[step.n] = step
                self.steps += 1
