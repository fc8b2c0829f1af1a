"""The edge: the service's verbs for one node.

Theory of operation. One object, `Edge`, one event loop. A call comes over the bus (`Edge.handle`), its verb (one file
each in `verbs/`) guards by the state table and acts: calls that run inside a sandbox are relayed to its driver
instance by a `Relay`, without a task; those that change what exists (create, stop, build) are tasks. Around the
verbs: `admission` and `slots` (what the node has promised), `registry` (what exists and existed), `reaper` (what is
due), `ending` (how a sandbox ends, from whatever side). State lives in memory: an edge that ends takes its sandboxes
with it, and one that was killed leaves them to the next start, which ends them (`Driver.start`). Adopting them
instead comes later.

What must always hold: a state was seen before it is claimed; a sandbox is moved by compare-and-set only; slot and
admission are given back once, after the driver gave back everything; every verb answers exactly once.
"""

from .edge import Edge, Node

__all__ = ["Edge", "Node"]
