"""`python -m dsec.testing.http_store`: a directory by HTTP, as slow as a distant object store.

It answers GET, with or without one range, and HEAD, and if it is writable PUT of a whole object, with
`If-None-Match: *` only where there is none: enough for an S3 client, whose signatures it does not look at. A directory
is empty, and what lies in one named `manifests` is an OCI manifest: enough for who pulls from a registry. Each answer
begins `latency` after its request, and all together go out at `bandwidth` at most. `GET /-/counts` says how many
requests it has had and how many bytes of objects it has sent.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from urllib.parse import unquote

from dsec.store.oci.manifest import OCI_MANIFEST

COUNTS = "/-/counts"
MAX_HEADER_BYTES = 16 * 1024
PIECE = 64 * 1024
BURST_S = 0.02
SHORTEST_S = 0.002

_DATE = "Last-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
_ETAG = b'ETag: "1"\r\n'
"""Nobody changes an object here, so that these need not be true."""

_TLS = b"\x16"
"""The first byte of a handshake."""
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class HttpStore:
    """One server. `latency_s` and `bandwidth` (bytes a second; 0 is no bound) may be changed while it runs."""

    def __init__(
        self, directory: str, *, latency_s: float = 0.0, bandwidth: float = 0.0, writable: bool = False
    ) -> None:
        self._root = os.path.realpath(directory)
        self._writable = writable
        self.latency_s = latency_s
        self.bandwidth = bandwidth
        self.requests = 0
        self.bytes = 0
        self._free_at = 0.0

    @contextlib.asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[int]:
        """Yields the port, on loopback."""
        server = await asyncio.start_server(self._connection, "127.0.0.1", port, limit=MAX_HEADER_BYTES)
        async with server:
            port = server.sockets[0].getsockname()[1]
            yield port

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                first = await reader.readexactly(1)
                if first == _TLS:
                    break  # a client that tries it first, and would wait for an answer
                head = first + await reader.readuntil(b"\r\n\r\n")
                await self._answer(head.decode("latin-1"), reader, writer)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # it has gone, or is no client of ours
        finally:
            writer.close()

    async def _answer(self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request, *lines = head.split("\r\n")
        method, target, *_ = [*request.split(" "), ""]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if target == COUNTS:
            body = json.dumps({"requests": self.requests, "bytes": self.bytes}).encode()
            writer.write(_head("200 OK", len(body)) + body)
            await writer.drain()
            return
        self.requests += 1
        await asyncio.sleep(self.latency_s)
        if method == "PUT" and self._writable:
            content = await reader.readexactly(int(headers.get("content-length", "0")))
            await self._pace(len(content))
            writer.write(_head(self._put(target, content, headers.get("if-none-match") == "*"), 0, _ETAG))
        elif method not in ("GET", "HEAD"):
            writer.write(_head("405 Method Not Allowed", 0))
        elif self._is_directory(target):
            writer.write(_head("200 OK", 0))
        elif (descriptor := self._open(target)) is None:
            writer.write(_head("404 Not Found", 0))
        else:
            kind = f"Content-Type: {OCI_MANIFEST}\r\n".encode() if "/manifests/" in target else b""
            try:
                await self._send(descriptor, method, headers.get("range", ""), kind, writer)
            finally:
                os.close(descriptor)
        await writer.drain()

    def _path(self, target: str) -> str | None:
        """Of a target; None where it lies elsewhere."""
        path = os.path.realpath(os.path.join(self._root, unquote(target.partition("?")[0]).lstrip("/")))
        return path if path.startswith(self._root + os.sep) else None

    def _is_directory(self, target: str) -> bool:
        return target.endswith("/") and (path := self._path(target)) is not None and os.path.isdir(path)

    def _open(self, target: str) -> int | None:
        path = self._path(target)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path is not None and os.path.isfile(path) else None

    def _put(self, target: str, content: bytes, only_new: bool) -> str:
        """Write an object. Returns the status."""
        path = self._path(target)
        if path is None:
            return "400 Bad Request"
        if only_new and os.path.exists(path):
            return "412 Precondition Failed"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        partial = f"{path}.partial"
        with open(partial, "wb") as file:
            file.write(content)
        os.rename(partial, path)
        return "200 OK"

    async def _send(
        self, descriptor: int, method: str, wanted: str, extra: bytes, writer: asyncio.StreamWriter
    ) -> None:
        size = os.fstat(descriptor).st_size
        start, end, status = 0, size, "200 OK"
        if (match := _RANGE.fullmatch(wanted)) is not None:
            start, end = int(match[1]), min(size, int(match[2]) + 1 if match[2] else size)
            if start >= size or start >= end:
                writer.write(_head("416 Range Not Satisfiable", 0, f"Content-Range: bytes */{size}\r\n".encode()))
                return
            status = "206 Partial Content"
            extra += f"Content-Range: bytes {start}-{end - 1}/{size}\r\n".encode()
        writer.write(_head(status, end - start, extra))
        while method == "GET" and start < end:
            piece = os.pread(descriptor, min(PIECE, end - start), start)
            if not piece:
                raise ConnectionAbortedError  # it became shorter: the client sees its answer end early
            await self._pace(len(piece))
            writer.write(piece)
            await writer.drain()
            self.bytes += len(piece)
            start += len(piece)

    async def _pace(self, size: int) -> None:
        if self.bandwidth <= 0:
            return
        now = asyncio.get_running_loop().time()
        # what a sleep took too long is made up for, and none is shorter than it can be kept
        self._free_at = max(now - BURST_S, self._free_at) + size / self.bandwidth
        if self._free_at - now > SHORTEST_S:
            await asyncio.sleep(self._free_at - now)


def _head(status: str, length: int, extra: bytes = b"") -> bytes:
    lines = f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\nAccept-Ranges: bytes\r\n{_DATE}"
    return lines.encode() + extra + b"\r\n"


@contextlib.contextmanager
def http_store(directory: str, *, latency_ms: float = 0.0, bandwidth_mb: float = 0.0) -> Iterator[str]:
    """A server in a process of its own, on a free port of loopback: its URL. It ends with the block."""
    command = [
        sys.executable,
        "-m",
        "dsec.testing.http_store",
        directory,
        f"--latency-ms={latency_ms}",
        f"--bandwidth-mb={bandwidth_mb}",
    ]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line.startswith("http://"):
            raise RuntimeError(f"cannot start the HTTP store of {directory}: it said {line!r}")
        yield line
    finally:
        process.kill()
        with process:
            pass


async def _main() -> None:
    parser = argparse.ArgumentParser(prog="dsec.testing.http_store", description="A directory as a slow HTTP server.")
    parser.add_argument("directory")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--writable", action="store_true", help="take objects too")
    parser.add_argument("--bandwidth-mb", type=float, default=0.0, help="MB (10^6 bytes) a second; 0: no bound")
    asked = parser.parse_args()
    store = HttpStore(
        asked.directory,
        latency_s=asked.latency_ms / 1000,
        bandwidth=asked.bandwidth_mb * 1e6,
        writable=asked.writable,
    )
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with store.serving(asked.port) as port:
        sys.stdout.write(f"http://127.0.0.1:{port}\n")
        sys.stdout.flush()
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(_main())
