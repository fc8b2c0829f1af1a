"""What a create took, its failure or the sandbox's end gives back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from leftovers import children, traces, wait_until
from rig import ForkServer, remove_all

from dsec.linux.mounts import mount_detached
from libdsec.protocol.errors import DSecError, SandboxFailedError

Spoil = Callable[[ForkServer, dict[str, Any]], None]


def no_cgroup(server: ForkServer, plan: dict[str, Any]) -> None:
    plan["cgroups"] = [*plan["cgroups"], "/sys/fs/cgroup/memory/nobody-made-this"]


def no_processor(server: ForkServer, plan: dict[str, Any]) -> None:
    plan["cpus"] = [1023]


def no_mappable_layer(server: ForkServer, plan: dict[str, Any]) -> None:
    mount = mount_detached("proc", [], [], 0, "a layer")
    try:
        server.peer.call("layer.hold", {"key": "proc"}, (mount,))
    finally:
        os.close(mount)
    plan["layers"] = ["base", "proc"]


def no_work_directory(server: ForkServer, plan: dict[str, Any]) -> None:
    plan["work"] += "/missing"


def no_mount_point(server: ForkServer, plan: dict[str, Any]) -> None:
    plan["root"] += "/missing"


def link_for_proc(server: ForkServer, plan: dict[str, Any]) -> None:
    os.symlink("/etc", Path(plan["upper"]) / "proc")


def link_for_dev(server: ForkServer, plan: dict[str, Any]) -> None:
    os.symlink("/", Path(plan["upper"]) / "dev")


FAILURES: dict[str, tuple[str, Spoil]] = {
    "a cgroup that is missing": ("cgroup", no_cgroup),
    "a processor that is missing": ("namespaces", no_processor),
    "a layer whose ids cannot be mapped": ("layer", no_mappable_layer),
    "a work directory that is missing": ("overlay", no_work_directory),
    "a mount point that is missing": ("mount", no_mount_point),
    "an image with a link for /proc": ("mount", link_for_proc),
    "an image with a link for /dev": ("mount", link_for_dev),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failed_create_names_its_step_and_leaves_nothing(server: ForkServer, name: str) -> None:
    stage, spoil = FAILURES[name]
    plan, directories = server.plan()
    spoil(server, plan)
    before = traces(server)
    try:
        with pytest.raises(SandboxFailedError) as raised:
            server.peer.call("sandbox.create", plan)
        assert raised.value.details["stage"] == stage, raised.value
        assert raised.value.details["errno"] > 0
        assert traces(server) == before
    finally:
        remove_all(directories)
        if "proc" in plan["layers"]:
            server.peer.call("layer.drop", {"key": "proc"})


def test_a_stuck_create_can_be_killed(server: ForkServer, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "cgroup.procs")  # opening it waits for a reader
    plan, directories = server.plan()
    plan["cgroups"] = [*plan["cgroups"], str(tmp_path)]
    before = traces(server)
    try:
        create = server.peer.send_call("sandbox.create", plan)
        other = server.peer.send_call("sandbox.list", {})  # answered meanwhile, and only then is the create under way
        assert server.peer.answer(other).values["sandboxes"] == before["sandboxes"]
        kill = server.peer.send_call("sandbox.kill", {"id": plan["id"]})
        with pytest.raises(DSecError, match="ended"):
            server.peer.answer(create)
        server.peer.answer(kill)
        assert traces(server) == before
    finally:
        remove_all(directories)


def test_an_image_without_mount_points_gets_them(server: ForkServer) -> None:
    box = server.create(layers=["probe", "base"])
    assert box.run("/opt/probe", "inet").stdout == "inet 0\n"
    box.close()


def test_hundreds_of_lives_leave_no_trace(server: ForkServer) -> None:
    server.create().close()
    before = traces(server)
    plan, directories = server.plan()
    try:
        for _ in range(150):
            answer = server.peer.call("sandbox.create", plan)
            for descriptor in answer.descriptors:
                os.close(descriptor)
            server.peer.call("sandbox.kill", {"id": plan["id"]})
            for cgroup in plan["cgroups"]:
                assert Path(cgroup, "cgroup.procs").read_text() == ""
            shutil.rmtree(Path(plan["work"], "work"))  # says that an overlay was not synced, and so refuses the next
    finally:
        remove_all(directories)
    wait_until(lambda: children(server.process.pid) == [])
    server.peer.events.clear()
    assert traces(server) == before
