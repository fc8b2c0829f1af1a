"""A registry in this process that can be told to lie, to stall and to break off, request by request."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from oci_layouts import digest


@dataclass
class Answer:
    """What goes back. `cut` bytes of the body are sent and the connection is closed; `length` is what is promised."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    length: int | None = None


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Rule = Callable[[Asked], Answer | None]
"""Answers a request, or leaves it to those after it."""


class Lying:
    """Rules are asked in the order of `rules`; what none answers is 404."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.asked: list[Asked] = []
        self.host = ""
        self.lock = threading.Lock()

    def answer(self, asked: Asked) -> Answer:
        with self.lock:
            self.asked.append(asked)
            for rule in self.rules:
                if (answer := rule(asked)) is not None:
                    return answer
        return Answer(404, b'{"errors": [{"code": "NAME_UNKNOWN"}]}')

    def paths(self, method: str = "GET") -> list[str]:
        return [asked.path for asked in self.asked if asked.method == method]

    def has(self, path: str, body: bytes, kind: str = "application/octet-stream", **answer: object) -> None:
        """Give this for a path, also parts of it."""

        def rule(asked: Asked) -> Answer | None:
            if asked.path != path or asked.method not in ("GET", "HEAD"):
                return None
            first = int(asked.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
            headers = {"Content-Type": kind}
            if first:
                headers["Content-Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
            return Answer(206 if first else 200, body[first:], headers, **answer)  # type: ignore[arg-type]

        self.rules.append(rule)

    def has_blob(self, name: str, body: bytes, **answer: object) -> str:
        self.has(f"/v2/{name}/blobs/{digest(body)}", body, **answer)
        return digest(body)

    def once(self, path: str, *answers: Answer) -> None:
        """The first requests for a path get these, before any other rule."""
        left = list(answers)

        def rule(asked: Asked) -> Answer | None:
            return left.pop(0) if left and asked.path.partition("?")[0] == path else None

        self.rules.insert(0, rule)

    def guard(self, token: str, realm: str, prefix: str = "/v2/") -> None:
        """Ask for a bearer token from `realm` for everything below `prefix`."""

        def rule(asked: Asked) -> Answer | None:
            if not asked.path.startswith(prefix) or asked.headers.get("authorization") == f"Bearer {token}":
                return None
            challenge = f'Bearer realm="{realm}",service="here",scope="repository:a:pull"'
            return Answer(401, b"no", {"WWW-Authenticate": challenge})

        self.rules.insert(0, rule)

    def gives_tokens(self, token: str, user: str, password: str) -> None:
        wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

        def rule(asked: Asked) -> Answer | None:
            if not asked.path.startswith("/token"):
                return None
            if asked.headers.get("authorization") != wanted:
                return Answer(401, b"who?")
            return Answer(200, b'{"token": "%s", "expires_in": 300}' % token.encode())

        self.rules.insert(0, rule)


@contextmanager
def served() -> Iterator[Lying]:
    """One that answers at `host` on loopback."""
    lying = Lying()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 5

        def _do(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = lying.answer(Asked(self.command, self.path, headers, self.rfile.read(size)))
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body) if answer.length is None else answer.length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body[: answer.cut])
            if answer.cut is not None or answer.length is not None:
                self.close_connection = True

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = _do  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that goes away is no fault of a test."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    lying.host = f"127.0.0.1:{server.server_address[1]}"
    try:
        yield lying
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
