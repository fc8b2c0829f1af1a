"""Creating sandboxes: by themselves, and as steps of a rollout."""

from __future__ import annotations

from ._steps.track import Scope, Track
from ._timeouts import checked_timeout
from .protocol.calls import CreateRequest
from .protocol.ids import new_token
from .protocol.spec import SandboxInfo, SandboxSpec
from .protocol.steps import MAIN
from .sandbox import Sandbox

_CREATE_GRACE_S = 15.0
"""Beyond the creator's own time: the node answers when nothing is left of the sandbox, and may first have to find out,
within its DSEC_FORK_SERVER_TIMEOUT_S, that its fork server hangs."""


async def create_alone(
    track: Track, spec: SandboxSpec, timeout: float, key: str | None, *, unnumbered: bool
) -> Sandbox:
    """A sandbox with a log of its own, asked for on `track`, on which the node numbers. A retry finds it by the key.

    With `unnumbered` its own calls go on `track` as well.
    """
    checked_timeout(timeout)
    request = CreateRequest(spec, key or new_token(), timeout)
    if unnumbered:
        info: SandboxInfo = await track.call(
            "sandbox.create", request, timeout=timeout + _CREATE_GRACE_S, repeatable=True
        )
        return Sandbox(track, info.id)
    info = await track.channel.call("sandbox.create", request, timeout=timeout + _CREATE_GRACE_S, repeatable=True)
    return Sandbox(Scope(track.channel, info.id).track(MAIN), info.id)


async def create_step(track: Track, spec: SandboxSpec, timeout: float, key: str | None) -> Sandbox:
    """A sandbox of a rollout: its create is a step, by which a retry and a program that runs again find it."""
    checked_timeout(timeout)
    request = CreateRequest(spec, None, timeout)
    info: SandboxInfo
    info, made = await track.make("sandbox.create", request, timeout=timeout + _CREATE_GRACE_S, key=key)
    return Sandbox(made, info.id)
