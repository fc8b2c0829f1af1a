"""Configuration from environment and options, and the lock of a run directory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dsec.cli.serve import serve as command
from dsec.config import NodeConfig, find_aether, load
from dsec.serve import main as serve
from dsec.serve.lock import RunLock, ids_claimed, prefix_held
from libdsec.protocol.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    UnavailableError,
    UnsupportedOperationError,
)


def test_options_win_over_the_environment_over_the_defaults() -> None:
    assert load({}) == NodeConfig()
    config = load({"DSEC_STATE_DIR": "/s", "DSEC_RUN_DIR": "/r", "DSEC_DEFAULT_PIDS": "7"}, run_dir="/x", log_file=None)
    assert (config.state_dir, config.run_dir, config.default_pids) == ("/s", "/x", 7)
    assert (config.api_socket, config.fork_server_socket) == ("/x/api.sock", "/x/fork-server.sock")


def test_every_field_has_a_variable() -> None:
    assert load({"DSEC_KEPT_FINAL": "5", "DSEC_SHM_BYTES": "4096"}) == NodeConfig(kept_final=5, shm_bytes=4096)


@pytest.mark.parametrize(
    "options",
    [
        {"nonsense": 1},
        {"state_dir": "relative"},
        {"id_base": 1},
        {"id_base": 2**32 - 65_536},
        {"id_ranges": 0},
        {"default_pids": "many"},
        {"run_dir": "/" + "r" * 90},
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        load({}, **options)


def test_a_run_directory_may_be_as_long_as_its_sockets_allow() -> None:
    assert len(load({}, run_dir="/" + "r" * 89).fork_server_socket) == 107


def test_the_binary_is_named_or_found(tmp_path: Path) -> None:
    binary = tmp_path / "aether"
    with pytest.raises(UnsupportedOperationError, match=r"`make setup`.*DSEC_AETHER"):
        find_aether(NodeConfig(aether=str(binary)))
    binary.touch(0o755)
    assert find_aether(NodeConfig(aether=str(binary))) == str(binary)


def test_a_lock_names_its_holder_and_waits_for_one_that_is_ending(tmp_path: Path) -> None:
    path, listening = str(tmp_path / "lock"), tmp_path / "api.sock"
    lock = RunLock(path, str(listening))
    with lock.held():
        listening.touch()
        with pytest.raises(AlreadyExistsError, match=r"pid [0-9]+"), RunLock(path, str(listening)).held():
            raise AssertionError("never reached")
        listening.unlink()
        waits: list[float] = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                listening.touch()

        with pytest.raises(AlreadyExistsError), RunLock(path, str(listening)).held(sleep):
            raise AssertionError("never reached")
        assert len(waits) == 3
    with lock.held():
        assert Path(path).read_text().strip().isdigit()


def test_a_log_that_cannot_be_written_is_said_by_name(tmp_path: Path) -> None:
    config = NodeConfig(state_dir=f"{tmp_path}/s", run_dir=f"{tmp_path}/r", log_file=f"{tmp_path}/none/log")
    with pytest.raises(UnavailableError, match=r"cannot write the log .*/none/log: No such file"):
        serve(config)


@pytest.mark.needs("linux")
def test_a_copied_state_directory_is_no_second_edge_of_the_same_name() -> None:
    with prefix_held("abcdefgh"), prefix_held("abcdefgi"), pytest.raises(AlreadyExistsError, match=r"edge\.json"):
        prefix_held("abcdefgh").__enter__()
    with prefix_held("abcdefgh"):
        pass


def test_the_help_of_the_server_names_every_variable() -> None:
    options = {"STATE_DIR", "RUN_DIR", "LOG_FILE"}
    names = {name.upper() for name in NodeConfig.__struct_fields__} - options
    said = set(re.findall(r"DSEC_(\w+)", command.__doc__ or ""))
    assert sorted(names - said) == []


def test_two_servers_with_the_same_ids_are_told() -> None:
    with capture_logs() as said, ids_claimed(7), ids_claimed(8):
        assert said == []
        with ids_claimed(7):
            assert [(entry["log_level"], entry["id_base"]) for entry in said] == [("warning", 7)]
    with capture_logs() as said, ids_claimed(7):
        assert said == []
