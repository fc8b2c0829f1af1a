"""The node's configuration: frozen, typed, from the environment and options, unknown keys refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

from libdsec.protocol.errors import InvalidArgumentError, UnsupportedOperationError
from libdsec.protocol.images import DataSource

MIB = 1024 * 1024
GIB = 1024 * MIB

MAX_SOCKET_PATH = 107
"""Bytes that the kernel takes as the address of a Unix socket."""

FORK_SERVER_SOCKET = "fork-server.sock"
"""In the run directory."""


class NodeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    state_dir: str = "/var/lib/dsec"
    """What outlives the server: images, layers, uppers, the node's identity."""
    run_dir: str = "/run/dsec"
    """Sockets and the lock; nothing in it outlives a reboot."""
    aether: str | None = None
    """The agent's binary; None looks beside the package, in the work tree, in PATH."""
    log_file: str | None = None
    """Where the server's log goes; None is standard error."""
    node_name: str = ""
    """How the node is called in answers; empty takes the host name."""
    id_base: int = 0x7000_0000
    """First host id. One range of 65,536 for the keepers, then one a sandbox."""
    id_ranges: int = 4095
    """Sandboxes that can live at once. The default fills 31 bits, and what lies below is left to the host's own
    users."""
    default_memory_bytes: int = 2 * GIB
    """Memory limit of a sandbox that names none (never more than the machine has)."""
    default_pids: int = 1024
    """Process limit of a sandbox that names none."""
    shm_bytes: int = 64 * MIB
    """Size of /dev/shm inside; charged to the sandbox's memory."""
    memory_reserve_bytes: int = 512 * MIB
    """Of the machine's memory, what admission does not give to sandboxes."""
    fork_server_timeout_s: float = 10.0
    """How long the fork server may take for anything but a create before it counts as hung and is replaced."""
    kept_final: int = 1024
    """Sandboxes that have ended and are still remembered."""
    durable: bool = False
    """Sync the journal before anything in it is answered: it then survives a loss of power too, and each answer waits
    for the disk."""
    log_keep_s: float = 7 * 86_400.0
    """How long the command log of a sandbox or rollout is kept after its end."""
    log_bytes: int = 8 * GIB
    """Of all command logs together; beyond it the oldest that have ended go first."""
    store: str | None = None
    """The shared store: a directory, or a URL of s3, gs, az, http or https (only read). Images that are not on this
    node are looked for there. Clouds' credentials come from their usual environment variables."""
    store_raw: bool = False
    """Publish data files as they are too, where the store is a directory: who has it mounted reads them there."""
    layers_limit_mb: int = 0
    """Beyond it images that the shared store has are forgotten, the longest unused first; 0 sets no limit."""
    data_source: DataSource = "auto"
    """How the data of layers that lie in the shared store is read: `direct` (where the store is mounted), `pre-content`
    (on demand), `prefetch` (all of it before the first sandbox); `auto` takes the first that store and kernel allow."""
    cache_limit_mb: int = 0
    """Of data that lies in the shared store too; beyond it layers that nobody uses are fetched anew when they are
    wanted again, the longest unused first. 0 sets no limit."""
    metrics: str | None = None
    """HOST:PORT at which the server's figures are had by Prometheus, unencrypted and by whoever can connect."""

    @property
    def journal_path(self) -> str:
        return f"{self.state_dir}/edge.db"

    @property
    def logs_dir(self) -> str:
        return f"{self.state_dir}/logs"

    @property
    def api_socket(self) -> str:
        return f"{self.run_dir}/api.sock"

    @property
    def fork_server_socket(self) -> str:
        return f"{self.run_dir}/{FORK_SERVER_SOCKET}"


ENVIRONMENT = {f"DSEC_{field.upper()}": field for field in NodeConfig.__struct_fields__}
"""Variable → field, one for each."""


def load(environment: dict[str, str] | None = None, **options: Any) -> NodeConfig:
    """Options win over the environment, the environment over the defaults; an option of None is not given.

    :raises InvalidArgumentError: a value of the wrong type or an unknown option.
    """
    given = os.environ if environment is None else environment
    values: dict[str, Any] = {field: given[name] for name, field in ENVIRONMENT.items() if given.get(name)}
    values.update({k: v for k, v in options.items() if v is not None})
    try:
        config = msgspec.convert(values, NodeConfig, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidArgumentError(f"cannot read the configuration: {error}") from None
    last = config.id_base + 65_536 * (config.id_ranges + 1) - 1
    if config.id_base < 65_536 or config.id_ranges < 1 or last >= 2**32 - 1:
        raise InvalidArgumentError(
            f"cannot use id ranges {config.id_base}..{last}: they must lie above 65535 and below 4294967295",
            field="id_base",
        )
    for field in ("state_dir", "run_dir"):
        if not os.path.isabs(getattr(config, field)):
            raise InvalidArgumentError(
                f"cannot use {field} {getattr(config, field)!r}: it must be absolute", field=field
            )
    if len(os.fsencode(config.fork_server_socket)) > MAX_SOCKET_PATH:
        most = MAX_SOCKET_PATH - len(os.fsencode(config.fork_server_socket)) + len(os.fsencode(config.run_dir))
        raise InvalidArgumentError(
            f"cannot use run_dir {config.run_dir!r}: sockets lie in it, so that it has at most {most} bytes; "
            "choose a shorter DSEC_RUN_DIR",
            field="run_dir",
        )
    return config


def find_aether(config: NodeConfig) -> str:
    """The path of the agent's binary.

    :raises UnsupportedOperationError: there is none; says where it was looked for.
    """
    package = Path(__file__).resolve().parent
    places = [package / "_bin" / "aether"]
    if len(package.parents) > 2:
        places += [package.parents[2] / "target" / profile / "aether" for profile in ("release", "debug")]
    if config.aether is not None:
        places = [Path(config.aether)]
    for place in places:
        if os.access(place, os.X_OK):
            return str(place)
    found = shutil.which("aether") if config.aether is None else None
    if found is None:
        raise UnsupportedOperationError(
            f"cannot run sandboxes: no aether binary at {', '.join(map(str, places))}: "
            "build it with `make setup` or name it with DSEC_AETHER"
        )
    return found
