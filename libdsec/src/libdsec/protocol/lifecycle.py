"""The one transition table of a sandbox.

A verb asks `allows` before it has any effect, then moves the state with compare-and-set. `stopped` and `failed` are
final. What a state claims has been seen: `running` means PID 1 answered its hello (after a pause: answered again),
`paused` that nothing in it runs any more. A pause that cannot be done leads back to `running`, a resume that cannot be
done back to `paused`, and the answer says why.
"""

from __future__ import annotations

import enum


class State(enum.StrEnum):
    CREATING = "creating"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESUMING = "resuming"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class Operation(enum.StrEnum):
    """What a client may ask of a sandbox."""

    EXEC = "exec"
    FILES = "files"
    PAUSE = "pause"
    RESUME = "resume"
    PACK = "pack"
    """Read what it has written. It is `pausing` while it stands still for that, and runs again or is paused as it was
    before."""
    STOP = "stop"
    INSPECT = "inspect"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.CREATING: frozenset({State.RUNNING, State.STOPPING, State.FAILED}),
    State.RUNNING: frozenset({State.PAUSING, State.STOPPING, State.FAILED}),
    State.PAUSING: frozenset({State.PAUSED, State.RUNNING, State.STOPPING, State.FAILED}),
    State.PAUSED: frozenset({State.RESUMING, State.STOPPING, State.FAILED}),
    State.RESUMING: frozenset({State.RUNNING, State.PAUSED, State.STOPPING, State.FAILED}),
    State.STOPPING: frozenset({State.STOPPED, State.FAILED}),
    State.STOPPED: frozenset(),
    State.FAILED: frozenset(),
}

ALIVE = frozenset({State.RUNNING, State.PAUSING, State.PAUSED, State.RESUMING})

ALLOWED: dict[Operation, frozenset[State]] = {
    # what is paused is resumed first, unseen by the caller
    Operation.EXEC: ALIVE,
    Operation.FILES: ALIVE,
    Operation.PAUSE: ALIVE,
    Operation.RESUME: ALIVE,
    Operation.PACK: ALIVE,
    # stopping twice is not an error, nor is stopping what has failed: both are asked by callers that clean up
    Operation.STOP: frozenset(State),
    Operation.INSPECT: frozenset(State),
}

FINAL = frozenset({State.STOPPED, State.FAILED})


def allows(operation: Operation, state: State) -> bool:
    return state in ALLOWED[operation]


def may_move(current: State, following: State) -> bool:
    return following in TRANSITIONS[current]
