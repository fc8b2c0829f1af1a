"""Start a fork server that outlives us."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess

from libdsec.protocol.errors import UnavailableError

BACKLOG = 8


def launch(aether: str, socket_path: str, log_path: str) -> subprocess.Popen[bytes]:
    """A process in a session of its own that writes to its own log, so that neither our terminal nor our end
    touches it. It inherits the listening socket; who connects is answered when it is ready.

    :raises UnavailableError: it cannot be executed, or the socket cannot be made.
    """
    try:
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            with _listening(socket_path) as sock:
                return _execute(aether, os.path.dirname(socket_path), sock.fileno(), log)
        finally:
            os.close(log)
    except OSError as error:
        raise UnavailableError(f"cannot start the fork server {aether}: {error.strerror}") from None


def _listening(path: str) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        sock.bind(path)
        os.chmod(path, 0o600)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _execute(aether: str, run_dir: str, listening: int, log: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [aether, "fork-server", "--run-dir", run_dir, "--listen-fd", str(listening)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        pass_fds=(listening,),
        start_new_session=True,
        env={"PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")},
    )
