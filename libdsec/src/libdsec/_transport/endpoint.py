"""Where a server is, and how a connection to it is made."""

from __future__ import annotations

import asyncio
import os
from typing import Protocol
from urllib.parse import unquote, urlsplit

from ..protocol.errors import InvalidArgumentError, PermissionDeniedError, UnavailableError
from .connection import Connection

_HELLO_TIMEOUT_S = 10.0
_RETRY_S = 0.05


class Endpoint(Protocol):
    """A place that connections can be made to."""

    async def connect(self, timeout: float) -> Connection:
        """A connection that has said hello.

        :raises UnavailableError: nobody answers there within `timeout` seconds.
        :raises PermissionDeniedError: this user may not connect.
        """


class UnixEndpoint:
    """A server at a Unix socket. Starts nothing."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __str__(self) -> str:
        return f"unix://{self.path}"

    async def connect(self, timeout: float) -> Connection:
        connection = await self.connect_if_listening(timeout)
        if connection is None:
            raise UnavailableError(
                f"cannot reach {self}: no server listens there; start one with `dsec serve`", url=str(self)
            )
        return connection

    async def connect_if_listening(self, timeout: float) -> Connection | None:
        """As `connect`, but None when nobody listens: the one case in which a local server may be started."""
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            remaining = max(deadline - asyncio.get_running_loop().time(), 0.001)
            connection = await self._open(remaining)
            if connection is None:
                return None
            try:
                await connection.hello(min(remaining, _HELLO_TIMEOUT_S))
                return connection
            except UnavailableError:
                # closed before its hello: the server is just ending, or its queue of new connections is full
                if remaining <= _RETRY_S:
                    raise
            await asyncio.sleep(_RETRY_S)

    async def _open(self, timeout: float) -> Connection | None:
        loop = asyncio.get_running_loop()
        peer = str(self)
        try:
            async with asyncio.timeout(timeout):
                _, connection = await loop.create_unix_connection(lambda: Connection(loop, peer), self.path)
        except TimeoutError:
            raise UnavailableError(f"cannot reach {peer}: no connection within {timeout:g} s") from None
        except PermissionError:
            raise PermissionDeniedError(
                f"cannot reach {peer}: permission denied; ask for access to it", url=peer
            ) from None
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError as error:
            raise UnavailableError(f"cannot reach {peer}: {error.strerror or error}", url=peer) from error
        return connection


def run_directory() -> str:
    """:raises InvalidArgumentError: DSEC_RUN_DIR is relative, and would be another one from elsewhere."""
    directory = os.environ.get("DSEC_RUN_DIR") or "/run/dsec"
    if not os.path.isabs(directory):
        raise InvalidArgumentError(f"cannot use DSEC_RUN_DIR={directory!r}: it must be absolute", field="run_dir")
    return directory


def socket_path(url: str) -> str:
    """The path in `unix:///path/api.sock`.

    :raises InvalidArgumentError: another kind of URL.
    """
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.scheme != "unix" or parts.netloc or not path.startswith("/"):
        raise InvalidArgumentError(
            f"cannot use the server URL {url!r}: it must be unix:///absolute/path/of/api.sock", field="url"
        )
    return path
