"""The apiserver: the only ingress.

Theory of operation. One listening Unix socket, one `Connection` (an `asyncio.Protocol`) a client, one `ServerCall` a
call under way; no task and no queue of its own. A CALL frame is looked up in the one route table (`routes`): the
principal that iam named at connect must hold the route's permission, then the call goes over the bus to the edge that
the route finds (by the prefix of the sandbox's id, or by placement), and from then on its frames pass through with
their call numbers changed. Nothing about a sandbox is kept here.

What must always hold: every CALL is answered by one RESULT or ERROR; a client that breaks the protocol is told so and
disconnected, others do not notice; what a client does not read is bounded (windows a stream, a high-water mark a
connection) and stops its source, and a client that reads nothing for a while is disconnected.
"""

from .connection import Connection
from .routes import ROUTES, Route
from .server import serve
from .service import Service

__all__ = ["ROUTES", "Connection", "Route", "Service", "serve"]
