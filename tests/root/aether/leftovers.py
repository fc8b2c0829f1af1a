"""What a fork server and its sandboxes may leave behind on a machine, counted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rig import ForkServer

from remains import fork_servers_descriptors


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def traces(server: ForkServer) -> dict[str, Any]:
    """Everything that a create takes and its end must give back, apart from what the test itself made. Namespaces and
    mounts inside them live as long as a process or a descriptor holds them, and both are counted."""
    pid = server.process.pid
    return {
        "host mounts": own_mounts("self", server),
        "server mounts": own_mounts(pid, server),
        "descriptors": fork_servers_descriptors(pid),
        "children": children(pid),
        "run directory": sorted(path.name for path in server.run_dir.rglob("*")),
        "layers": server.peer.call("layer.list", {}).values["layers"],
        "sandboxes": server.peer.call("sandbox.list", {}).values["sandboxes"],
    }


def own_mounts(pid: int | str, server: ForkServer) -> list[str]:
    """Other mounts come and go with whatever else runs on the machine."""
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return [line for line in lines if str(server.directory) in line]


def wait_until(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    limit = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < limit, "it did not come to hold"
        time.sleep(0.005)
