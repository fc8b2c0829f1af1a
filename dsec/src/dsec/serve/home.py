"""Where the sandboxes of a state directory live: the run directory of the server before this one."""

from __future__ import annotations

import contextlib
import os
import socket

from dsec.config import FORK_SERVER_SOCKET, NodeConfig
from libdsec.protocol.errors import AlreadyExistsError, UnavailableError

RECORD_NAME = "run-dir"


def take_home(config: NodeConfig) -> None:
    """Write down that this server's sandboxes are made in its run directory. One that starts with another would not
    find them, and take away what it does not know: it is refused while that one's fork server lives.

    :raises AlreadyExistsError: a fork server lives in the run directory of an earlier server.
    :raises UnavailableError: the state directory cannot be read or written.
    """
    path = os.path.join(config.state_dir, RECORD_NAME)
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            earlier = file.read()
    except FileNotFoundError:
        earlier = config.run_dir
    except OSError as error:
        raise UnavailableError(f"cannot read {path}: {error.strerror}") from None
    if not _same(earlier, config.run_dir) and _listens(os.path.join(earlier, FORK_SERVER_SOCKET)):
        raise AlreadyExistsError(
            f"cannot serve {config.state_dir} in {config.run_dir}: its sandboxes live in {earlier}, and would be "
            f"ended; set DSEC_RUN_DIR={earlier}, or stop them there first",
            run_dir=earlier,
        )
    try:
        # whole or not at all: a record cut short would name another place
        with open(f"{path}.new", "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(config.run_dir)
        os.rename(f"{path}.new", path)
    except OSError as error:
        if earlier != config.run_dir:
            raise UnavailableError(f"cannot write {path}: {error.strerror}") from None


def _same(one: str, other: str) -> bool:
    if one == other:
        return True
    with contextlib.suppress(OSError):
        return os.path.samefile(one, other)
    return False


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except TimeoutError:
            return True  # hung, and alive
        except OSError:
            return False
        return True
