"""The listening socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator

from libdsec.protocol.errors import UnavailableError

from .connection import Connection
from .service import Service

BACKLOG = 512
DRAIN_TIMEOUT_S = 5.0


@contextlib.asynccontextmanager
async def serve(service: Service, path: str, mode: int = 0o600) -> AsyncIterator[None]:
    """Accept clients at a Unix socket while the context lasts; at its end they get what they are owed, for a while.

    :raises UnavailableError: the socket cannot be made.
    """
    loop = asyncio.get_running_loop()
    sock = _listen(path, mode)
    server = await loop.create_unix_server(lambda: Connection(service, loop), sock=sock)
    try:
        yield
    finally:
        server.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        await _drain(service)


def _listen(path: str, mode: int) -> socket.socket:
    """Made under another name and renamed: who can connect is answered, and nobody finds it with another mode."""
    partial = f"{path}.new"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
        sock.bind(partial)
        os.chmod(partial, mode)
        sock.listen(BACKLOG)
        os.rename(partial, path)
    except OSError as error:
        sock.close()
        raise UnavailableError(f"cannot listen at {path}: {error.strerror}") from None
    return sock


async def _drain(service: Service) -> None:
    connections = [c for c in service.connections if isinstance(c, Connection)]
    for connection in connections:
        connection.close()
    if connections:
        _, late = await asyncio.wait([c.closed for c in connections], timeout=DRAIN_TIMEOUT_S)
        if late:
            for connection in connections:
                connection.abort()
