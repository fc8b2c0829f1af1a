"""What this machine has, as the edge is told it."""

from __future__ import annotations

import os
import resource
import socket

from dsec.config import NodeConfig
from dsec.edge import Node
from dsec.edge.identity import Identity
from dsec.edge.options import Machine

PIDS_SHARE = 0.9
"""Of the machine's pids, what sandboxes may have together."""


DESCRIPTORS_WANTED = 262_144
DESCRIPTORS_A_SANDBOX = 3
"""Here a pidfd and a channel; in the fork server about as many."""

DESCRIPTORS_APART = 1024
"""For clients, layers and everything else."""


def raise_descriptor_limit() -> int:
    """As far as this process may, for itself and the fork server it starts. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft if soft != resource.RLIM_INFINITY else DESCRIPTORS_WANTED


def describe(config: NodeConfig, identity: Identity) -> Node:
    """What the edge is told: never more sandboxes than there are ids and descriptors for."""
    descriptors = raise_descriptor_limit()
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
        id_ranges=max(1, min(config.id_ranges, (descriptors - DESCRIPTORS_APART) // DESCRIPTORS_A_SANDBOX)),
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
