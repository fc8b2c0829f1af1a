"""What a caller asks for when it creates a sandbox. Every field is honoured or refused; none is dropped."""

from __future__ import annotations

from typing import Literal

import msgspec

Backend = Literal["container", "microvm", "fullvm", "fncall"]

Network = Literal["private", "host"]
"""`private`: a network of its own, with loopback alone. `host`: the node's own, for builds; not for what is not
trusted, see SECURITY.md."""

MIB = 1024 * 1024


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bounds of one sandbox; None means the node's default for memory and pids, and no bound for the rest."""

    memory_bytes: int | None = None
    cpu_cores: float | None = None
    """Cores' worth of CPU time (0.5 is half a core); the sandbox sees it rounded up as its number of processors."""
    pids: int | None = None
    disk_bytes: int | None = None
    """Size of the writable upper. An error at create where the machine cannot bound it."""
    disk_inodes: int | None = None


class Requests(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What admission counts. Limits may overcommit a node, requests may not."""

    memory_bytes: int = 4 * MIB
    """The default is several times what an idle sandbox takes, so that thousands of them fit a node."""
    pids: int = 4


class SandboxSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    image: str
    """`name:tag` of a published base image."""
    backend: Backend = "container"
    workspace: str | None = None
    toolkits: tuple[str, ...] = ()
    """Above the workspace, the first one lowest."""
    limits: Limits = Limits()
    requests: Requests = Requests()
    env: dict[str, str] = {}
    cwd: str | None = None
    """Default working directory of commands; None takes the image's."""
    user: str | None = None
    """Default user of commands and file operations: a name, a uid, or `user:group`; None takes the image's."""
    hostname: str | None = None
    ttl_idle_s: float | None = None
    """Stop after so many seconds without a call of a client."""
    deadline_s: float | None = None
    """Stop after so many seconds of life, whatever happens."""
    network: Network = "private"
    """`host` only for principals that may build images."""
    network_rules: dict[str, bool] = {}
    """Egress rules. This version has none to give: anything but an empty map or all False is refused."""
    nested_user_namespaces: bool = False
    labels: dict[str, str] = {}
    rollout: str | None = None
    """The rollout whose command log it belongs to; None: its log is its own."""
    job: str | None = None
    """None of a sandbox with a rollout takes the rollout's."""


class SandboxInfo(msgspec.Struct, frozen=True):
    """A sandbox as the edge knows it. Times are seconds since the epoch."""

    id: str
    spec: SandboxSpec
    state: str
    cause: str | None
    """Why it stopped or failed: `client`, `idle_ttl`, `deadline`, `init_died`, ..."""
    created_at: float
    last_used_at: float
    node: str
    create_ms: float | None = None
    """Milliseconds from the edge's receipt of the request to the first answer of PID 1."""
    job: str | None = None
    rollout: str | None = None
    paused_at: float | None = None
    """Since when it has been paused, while it is."""
    paused_s: float = 0.0
    """Seconds of pauses that are over; they count for neither its idle TTL nor its deadline."""
    track: str = ""
    """Of the command log: where the steps of whoever created it go."""
