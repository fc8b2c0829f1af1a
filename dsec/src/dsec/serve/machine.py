"""What this machine has, as the edge is told it."""

from __future__ import annotations

import os
import socket

from dsec.config import NodeConfig
from dsec.edge import Node
from dsec.edge.identity import Identity
from dsec.edge.options import Machine

PIDS_SHARE = 0.9
"""Of the machine's pids, what sandboxes may have together."""


def describe(config: NodeConfig, identity: Identity) -> Node:
    memory = _memory_total()
    pids = _read_int("/proc/sys/kernel/pid_max", 32_768)
    return Node(
        name=config.node_name or socket.gethostname(),
        edge_prefix=identity.edge_prefix,
        machine=Machine(
            memory_bytes=memory,
            cpus=len(os.sched_getaffinity(0)),
            pids=pids,
            default_memory_bytes=config.default_memory_bytes,
            default_pids=config.default_pids,
        ),
        memory_for_requests=max(0, memory - config.memory_reserve_bytes),
        pids_for_requests=int(min(pids, _read_int("/proc/sys/kernel/threads-max", pids)) * PIDS_SHARE),
        id_base=config.id_base,
        id_ranges=config.id_ranges,
        kept_final=config.kept_final,
    )


def _memory_total() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    raise ValueError("/proc/meminfo has no MemTotal")


def _read_int(path: str, otherwise: int) -> int:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return otherwise
