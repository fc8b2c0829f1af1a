"""The edge: the service's verbs for one node.

Theory of operation. One object, `Edge`, one event loop. A call comes over the bus (`Edge.handle`), its verb (one file
each in `verbs/`) guards by the state table and acts: calls that run inside a sandbox are relayed to its driver
instance by a `Relay`, without a task; those that change what exists (create, stop, build) are tasks. Around the
verbs: `admission` and `slots` (what the node has promised), `registry` (what exists and existed), `reaper` (what is
due), `ending` (how a sandbox ends, from whatever side), `pausing`, `leases` (who holds a rollout or job, what is
orphaned), `bulk` (a verb over many). What an edge must know again after a crash is in the journal: `rows` (sandboxes),
`leases`, and the command log. An edge that was killed leaves its sandboxes running; the next one adopts them
(`recovery`).

Every call that is a step goes through `steps`: begun in the command log, sent to the sandbox once that is written
down, its end recorded, and only then told to the client (`relay`).

What must always hold: a state was seen before it is claimed; a sandbox is moved by compare-and-set only; slot and
admission are given back once, after the driver gave back everything; every verb answers exactly once.
"""

from .edge import Edge, Node

__all__ = ["Edge", "Node"]
