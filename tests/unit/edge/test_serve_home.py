"""A state directory is not served from another place than where its sandboxes live."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dsec.config import FORK_SERVER_SOCKET, NodeConfig, load
from dsec.serve.home import RECORD_NAME, take_home
from libdsec.protocol.errors import AlreadyExistsError, UnavailableError


def config(tmp_path: Path, name: str) -> NodeConfig:
    for directory in ("state", name):
        (tmp_path / directory).mkdir(exist_ok=True)
    return load(state_dir=str(tmp_path / "state"), run_dir=str(tmp_path / name))


def test_another_run_directory_is_refused_while_the_fork_server_lives(tmp_path: Path) -> None:
    take_home(config(tmp_path, "a"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "a" / FORK_SERVER_SOCKET))
        listener.listen()
        with pytest.raises(AlreadyExistsError, match=str(tmp_path / "a")) as raised:
            take_home(config(tmp_path, "b"))
        assert raised.value.details["run_dir"] == str(tmp_path / "a")
        take_home(config(tmp_path, "a"))
        (tmp_path / "link").symlink_to("a")
        take_home(config(tmp_path, "link"))
    take_home(config(tmp_path, "b"))
    assert (tmp_path / "state" / RECORD_NAME).read_text() == str(tmp_path / "b")


def test_a_state_directory_that_cannot_be_written_is_an_error_only_where_it_matters(tmp_path: Path) -> None:
    take_home(config(tmp_path, "a"))
    (tmp_path / "state" / f"{RECORD_NAME}.new").mkdir()
    take_home(config(tmp_path, "a"))
    with pytest.raises(UnavailableError, match="cannot write"):
        take_home(config(tmp_path, "b"))
