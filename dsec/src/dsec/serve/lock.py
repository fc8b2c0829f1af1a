"""One server a run directory, a state directory and an edge prefix."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator

import structlog

from libdsec.protocol.errors import AlreadyExistsError, UnavailableError

ENDING_TIMEOUT_S = 10.0
"""How long the lock of a server that listens no more is waited for."""

_POLL_S = 0.02


class RunLock:
    """A lock file that names its holder. The kernel lets go of it however the holder ends."""

    def __init__(self, path: str, listening: str) -> None:
        """`listening`: the holder's socket. While it is there, the holder is not about to end."""
        self._path = path
        self._listening = listening

    @contextlib.contextmanager
    def held(self, sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
        """:raises AlreadyExistsError: another server holds it; says which.
        :raises UnavailableError: the file cannot be opened."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UnavailableError(f"cannot open the lock {self._path}: {error.strerror}") from None
        try:
            self._acquire(descriptor, sleep)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def _acquire(self, descriptor: int, sleep: Callable[[float], None]) -> None:
        for _ in range(round(ENDING_TIMEOUT_S / _POLL_S)):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if os.path.exists(self._listening):
                    break
            sleep(_POLL_S)
        holder = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip() or "unknown"
        raise AlreadyExistsError(
            f"cannot serve: a server runs already (pid {holder} holds {self._path}); "
            "use it, end it, or choose another DSEC_RUN_DIR and DSEC_STATE_DIR",
            pid=holder,
        )


@contextlib.contextmanager
def prefix_held(edge_prefix: str) -> Iterator[None]:
    """A prefix names the edge's control groups and sandboxes, and a copied state directory has the original's: its
    server would take away what the other one runs. The name is a socket's in the kernel's memory, gone with us.

    :raises AlreadyExistsError: a server with the same prefix runs on this machine.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as name:
        try:
            name.bind(f"\0dsec-edge-{edge_prefix}")
        except OSError as error:
            raise AlreadyExistsError(
                f"cannot serve: another server on this machine is edge {edge_prefix} ({error.strerror}); if this state "
                "directory is a copy, remove its edge.json, and it becomes an edge of its own",
                edge=edge_prefix,
            ) from None
        yield


@contextlib.contextmanager
def ids_claimed(id_base: int) -> Iterator[None]:
    """Two servers that give the same ids have sandboxes that are one user to the kernel: less apart than they should
    be, and no reason to refuse to serve. It is said in the log. Ranges that overlap without beginning alike are not
    noticed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as name:
        try:
            name.bind(f"\0dsec-ids-{id_base}")
        except OSError:
            structlog.get_logger("dsec.serve").warning(
                "another server of this machine gives the same ids; set DSEC_ID_BASE of one of them", id_base=id_base
            )
        yield
