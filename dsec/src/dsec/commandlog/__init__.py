"""The command log: what was asked of sandboxes, step by step, and what came of it.

Theory of operation. A log has a scope (a sandbox, or a rollout with its sandboxes); `libdsec.protocol.steps` defines
scopes, tracks and steps. `CommandLog.begin` decides what a call is: a new step, whose row is committed with state
`running` before anything is sent to an init; one that is recorded, and is answered from the record; or one that runs,
and is joined. `OpenStep.end` commits the outcome before the client has it. `OpenStep.withdraw` takes a step out of
the log that surely did not run, so that its number is free again.

What is decided on the way of a call is decided in memory: the last number of each track, the steps that run, the
bytes of the scope. The database is asked only for what came before (a scope or track seen for the first time, a step
said again). Rows of steps are found by scope and seq, and by scope, track and n; a scope's own row is written only
now and then, for how many bytes it has and below which seq no step runs, which are bounds for what a start reads.

Outputs lie in the row up to INLINE_BYTES, larger ones in one append-only file a scope, written before the row is
committed: bytes of it that no row names (a crash came between) are never read and go with the scope.

A step's key is what an init is told of it (`tag`). It names one run of one step: a step that runs again has another.
After a crash the steps that were running are open again: what init still knows comes back with its key (`by_key`),
and the edge ends or withdraws the rest.

Reading goes beside: `read_log`, `read_output` and `play` answer callers under their credit, with rows and bytes that
threads fetch. A scope that has ended (`end_scope`) is kept as long as `Bounds` says after the last step in it, then
`prune` deletes it in small commits, its name first; `open_scope` lets one go on.

What always holds: nobody is told an outcome that is not committed, and nothing is sent for a step whose row is not.
When an outcome cannot be written, the step counts as unknown until a restart, where init may still have the answer.
"""

from .bounds import Bounds
from .entry import Begun, Joined, OpenStep, Outcome, Recorded, RecordedStep
from .log import CommandLog, ScopeInfo
from .playback import play
from .reader import read_log, read_output
from .recorder import Held, Recorder
from .tables import SCHEMA

__all__ = [
    "SCHEMA",
    "Begun",
    "Bounds",
    "CommandLog",
    "Held",
    "Joined",
    "OpenStep",
    "Outcome",
    "Recorded",
    "RecordedStep",
    "Recorder",
    "ScopeInfo",
    "play",
    "read_log",
    "read_output",
]
