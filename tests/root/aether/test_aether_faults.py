"""Named points of the binary at which a test can make it die."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from conversation import Conversation
from rig import ForkServer, Image, aether_binary, hold_image

from libdsec.protocol.errors import DSecError


def test_an_armed_point_of_fault_ends_who_passes_it(
    tmp_path: Path, base_image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSEC_FAULT", "aether:fork_server.create.reported:2")
    server = ForkServer(aether_binary(), tmp_path)
    try:
        hold_image(server, "base", base_image)
        server.create()
        with pytest.raises((ConnectionError, DSecError)):
            server.create()
        assert server.process.wait(10) == -9
    finally:
        server.close()


@pytest.mark.parametrize(("point", "ran"), [("init.exec.read", False), ("init.answer.kept:2", True)])
def test_an_armed_point_of_fault_in_pid_1_ends_the_sandbox(
    tmp_path: Path, base_image: Image, monkeypatch: pytest.MonkeyPatch, point: str, ran: bool
) -> None:
    monkeypatch.setenv("DSEC_FAULT", f"aether:{point}")
    server = ForkServer(aether_binary(), tmp_path)
    try:
        hold_image(server, "base", base_image)
        for _ in range(2):
            box = server.create()
            talk = Conversation(box)
            talk.do("ping", {})
            talk.start_exec("echo x >/root/ran")
            assert server.peer.wait_event(event="exited", id=box.id)["status"] == 137 << 8
            assert (Path(box.plan["upper"]) / "root" / "ran").exists() is ran
    finally:
        server.close()


def test_a_point_of_fault_that_does_not_exist_is_told_at_the_start(tmp_path: Path) -> None:
    command = [str(aether_binary()), "fork-server", "--run-dir", str(tmp_path)]
    done = subprocess.run(
        command, env={"DSEC_FAULT": "aether:nowhere"}, capture_output=True, text=True, timeout=10, check=False
    )
    assert done.returncode == 1
    assert "nowhere" in done.stderr
