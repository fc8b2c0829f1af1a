"""One process with all rooms of a node: wires them, runs them, ends them.

`main(config)` is what `dsec serve` calls. The order is: lock, log, state, edge (which takes away what an earlier one
left and starts the fork server), then the socket, so that whoever can connect is answered. SIGTERM, SIGINT and the
call `server.shutdown` end it in reverse: no new sandboxes, all stopped, fork server ended, socket gone, lock
released; nothing is left behind then. `server.drain` ends it too and leaves the sandboxes running. After that, and
after a SIGKILL at any moment, the next start adopts them (`dsec.edge.recovery`).
"""

from .lock import RunLock
from .node import main

__all__ = ["RunLock", "main"]
