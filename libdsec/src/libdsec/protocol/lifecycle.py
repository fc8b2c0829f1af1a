"""The one transition table of a sandbox.

A verb asks `allows` before it has any effect, then moves the state with compare-and-set. `stopped` and `failed` are
final. What a state claims has been seen: `running` means PID 1 answered its hello.
"""

from __future__ import annotations

import enum


class State(enum.StrEnum):
    CREATING = "creating"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class Operation(enum.StrEnum):
    """What a client may ask of a sandbox."""

    EXEC = "exec"
    FILES = "files"
    STOP = "stop"
    INSPECT = "inspect"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.CREATING: frozenset({State.RUNNING, State.STOPPING, State.FAILED}),
    State.RUNNING: frozenset({State.STOPPING, State.FAILED}),
    State.STOPPING: frozenset({State.STOPPED, State.FAILED}),
    State.STOPPED: frozenset(),
    State.FAILED: frozenset(),
}

ALLOWED: dict[Operation, frozenset[State]] = {
    Operation.EXEC: frozenset({State.RUNNING}),
    Operation.FILES: frozenset({State.RUNNING}),
    # stopping twice is not an error, nor is stopping what has failed: both are asked by callers that clean up
    Operation.STOP: frozenset(State),
    Operation.INSPECT: frozenset(State),
}

FINAL = frozenset({State.STOPPED, State.FAILED})


def allows(operation: Operation, state: State) -> bool:
    return state in ALLOWED[operation]


def may_move(current: State, following: State) -> bool:
    return following in TRANSITIONS[current]
