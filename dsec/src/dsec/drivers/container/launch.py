"""Start a fork server that outlives us."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess

import msgspec

from dsec.linux import KernelError
from dsec.linux.processes import is_alive, pidfd_open, pidfd_send_signal, pidfd_wait, start_time
from libdsec.protocol.errors import UnavailableError

BACKLOG = 8
KILL_TIMEOUT_S = 2.0


class Record(msgspec.Struct, frozen=True):
    """Which process it is; with the start time a pid names one for good."""

    pid: int
    start_time: int


def launch(aether: str, socket_path: str, log_path: str, record_path: str) -> subprocess.Popen[bytes]:
    """A process in a session of its own that writes to its own log, so that neither our terminal nor our end
    touches it. It inherits the listening socket; who connects is answered when it is ready. Which process it is gets
    written down: the socket does not tell, since it was us who made it.

    :raises UnavailableError: it cannot be executed, or the socket cannot be made.
    """
    try:
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            with _listening(socket_path) as sock:
                process = _execute(aether, os.path.dirname(socket_path), sock.fileno(), log)
            try:
                with open(record_path, "wb") as file:
                    file.write(msgspec.json.encode(Record(process.pid, start_time(process.pid))))
            except BaseException:
                # nobody would find it again
                process.kill()
                process.wait()
                raise
            return process
        finally:
            os.close(log)
    except OSError as error:
        raise UnavailableError(f"cannot start the fork server {aether}: {error.strerror}") from None


def lives(record_path: str) -> bool:
    """Whether the server that was written down is there."""
    record = _read(record_path)
    return record is not None and is_alive(record.pid, record.start_time)


def kill_recorded(record_path: str) -> bool:
    """Kill the server that was written down. False when it is gone already."""
    return end_recorded(record_path, 0)


def end_recorded(record_path: str, grace_s: float) -> bool:
    """As `kill_recorded`, of a server that has that long to end by itself."""
    record = _read(record_path)
    if record is None:
        return False
    try:
        pidfd = pidfd_open(record.pid)
    except KernelError:
        return False
    try:
        # pinned first, then looked at: the pid may have been given to another process before
        if not is_alive(record.pid, record.start_time):
            return False
        if grace_s and pidfd_wait(pidfd, grace_s):
            return True
        pidfd_send_signal(pidfd, signal.SIGKILL)
        pidfd_wait(pidfd, KILL_TIMEOUT_S)
    except KernelError:
        return False
    finally:
        os.close(pidfd)
    return True


def _read(record_path: str) -> Record | None:
    try:
        with open(record_path, "rb") as file:
            return msgspec.json.decode(file.read(), type=Record)
    except (OSError, msgspec.DecodeError):
        return None


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
        env={"PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), **_fault()},
    )


def _fault() -> dict[str, str]:
    """What a test wishes (`dsec.faults`), told to one server alone: the one that replaces it is to live."""
    wish = os.environ.pop("DSEC_FAULT", None)
    return {} if wish is None else {"DSEC_FAULT": wish}


def wait_for(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Until it has ended, by itself or by force."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout_s)
