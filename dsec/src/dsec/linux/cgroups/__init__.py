"""Control groups: where each controller is, and a pool of directories that sandboxes use in turn.

A host has its controllers in v1 hierarchies (one mount a controller), in the one v2 hierarchy, or some in each
(hybrid); `Hierarchies.detect` finds out. The pool keeps one directory in each hierarchy and below it one directory a
sandbox, of the same name in each: `s0`, `s1`, ... A sandbox's PID 1 joins all of them and makes leaves below the
memory one. On v2 a directory that hands controllers down to its leaves may hold no process, so an idle one hands none
down: PID 1 can join it, and then does with it what it likes.

Directories are used again, because making them is the most expensive part and because on v1 a removed memory group
lingers while pages are charged to it; for the same reason the first leaves of commands stay on v1. What always holds:
an idle directory is empty, has its counters reset, and its last limits are known, so that taking it writes only what
differs; a directory whose processes do not go away is set aside and looked at again, never handed out; after a crash
`adopt` takes over what runs and `sweep` the rest.

Freezing is one more hierarchy on v1 and a file of every directory on v2. A group is thawed before it is idle: what was
killed while frozen would otherwise never end.
"""

from .group import FREEZE_POLL_S, Cgroup, CgroupLimits
from .hierarchies import Hierarchies, Hierarchy
from .pool import CgroupPool

__all__ = ["FREEZE_POLL_S", "Cgroup", "CgroupLimits", "CgroupPool", "Hierarchies", "Hierarchy"]
