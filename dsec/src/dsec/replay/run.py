"""A log against fresh sandboxes, and what is to be said of each of its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from libdsec.protocol.calls import CreateRequest
from libdsec.protocol.errors import InvalidArgumentError
from libdsec.protocol.spec import SandboxSpec
from libdsec.protocol.steps import Step, step_name

from . import facts
from .document import Log
from .facts import Facts
from .plan import Skip, reason_to_skip
from .report import Difference, ReplayReport, StepReport, Verdict
from .world import Say, World

Progress = Callable[[str, int, int], None]
"""In which run (`first`, `second`), how many steps have ended, of how many."""


class Planned(NamedTuple):
    step: Step
    skip: Skip | None
    gap: str
    """The step that it stands on the gap of."""
    recorded: Facts


def plan(log: Log, *, keep: bool = False) -> list[Planned]:
    """What is to be done with each step.

    :raises InvalidArgumentError: a step whose outcome cannot be read.
    """
    planned: list[Planned] = []
    gaps: dict[str, str] = {}
    for step in log.steps:
        try:
            skip = reason_to_skip(step)
            if keep and skip is None and step.method == "sandbox.stop":
                skip = Skip("its sandbox is to be kept", False)
            record = facts.recorded(step) if skip is None else {}
        except (msgspec.DecodeError, LookupError) as error:
            name = step_name(step.track, step.n)
            raise InvalidArgumentError(f"cannot use step {name}: its outcome cannot be read ({error})") from None
        planned.append(Planned(step, skip, gaps.get(step.sandbox, ""), record))
        if skip is not None and skip.gap:
            gaps.setdefault(step.sandbox, step_name(step.track, step.n))
    return planned


async def replay(
    log: Log, say: Say, *, image: str | None = None, keep: bool = False, progress: Progress | None = None
) -> ReplayReport:
    """Run a log in fresh sandboxes; where anything differs from the record, a second time up to there.

    `image` takes the place of the recorded one, and is what sandboxes are made from of which no create is recorded.
    :raises InvalidArgumentError: a sandbox whose create is not in the log, and no image given.
    :raises DSecError: a sandbox could not be made, or the server was lost.
    """
    planned = plan(log, keep=keep)
    runs = [one for one in planned if one.skip is None]
    environments = _environments([one.step for one in runs], image)
    steps = [_in_image(one.step, image) for one in runs]
    async with World(say, environments, keep=keep) as first:
        once = await _gather(first, steps, "first", progress)
        differing = [i for i, one in enumerate(runs) if facts.differences(one.recorded, once[one.step.seq])]
        again: dict[int, Facts] = {}
        async with World(say, environments, keep=keep) as second:
            if differing:
                again = await _gather(second, steps[: differing[-1] + 1], "second", progress)
    reports = tuple(_judge(one, once, again) for one in planned)
    verdicts: tuple[Verdict, ...] = ("same", "different", "nondeterministic", "skipped")
    kept = {name: tuple(w.sandboxes[name] for w in (first, second) if name in w.sandboxes) for name in first.sandboxes}
    return ReplayReport(
        scope=log.scope,
        steps=reports,
        totals={verdict: sum(report.verdict == verdict for report in reports) for verdict in verdicts},
        kept=kept if keep else {},
    )


async def _gather(world: World, steps: Sequence[Step], run: str, progress: Progress | None) -> dict[int, Facts]:
    """Seq → what the step gave."""
    found: dict[int, Facts] = {}

    def tell(step: Step, seen: Facts) -> None:
        found[step.seq] = seen
        if progress is not None:
            progress(run, len(found), len(steps))

    await world.run(steps, tell)
    return found


def _judge(one: Planned, once: dict[int, Facts], again: dict[int, Facts]) -> StepReport:
    step = one.step
    name = step_name(step.track, step.n)
    if one.skip is not None:
        return StepReport(name, step.method, "skipped", one.skip.why, one.gap)
    first = once[step.seq]
    apart = facts.differences(one.recorded, first)
    if not apart:
        return StepReport(name, step.method, "same", gap=one.gap)
    second = again[step.seq]
    verdict: Verdict = "nondeterministic" if facts.differences(first, second) else "different"
    told = tuple(Difference(fact, was, now, second.get(fact)) for fact, (was, now) in apart.items())
    return StepReport(name, step.method, verdict, "", one.gap, told)


def _environments(steps: Sequence[Step], image: str | None) -> dict[str, SandboxSpec]:
    """Of the sandboxes that no step makes."""
    made = {step.sandbox for step in steps if step.method == "sandbox.create"}
    bare = {step.sandbox for step in steps} - made
    if bare and image is None:
        raise InvalidArgumentError(
            f"cannot replay: how sandbox {min(bare)} was made is not in the log; export it whole, or say in "
            "which image to run with --image",
            field="image",
        )
    return {sandbox: SandboxSpec(image) for sandbox in bare if image is not None}


def _in_image(step: Step, image: str | None) -> Step:
    if image is None or step.method != "sandbox.create":
        return step
    request = msgspec.msgpack.decode(step.request, type=CreateRequest)
    request = msgspec.structs.replace(request, spec=msgspec.structs.replace(request.spec, image=image))
    return msgspec.structs.replace(step, request=msgspec.Raw(msgspec.msgpack.encode(request)))
