"""The options of a create: each is honoured or refused before anything is taken. Pure."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import msgspec

from libdsec.protocol.errors import InvalidArgumentError
from libdsec.protocol.spec import MIB, Limits, SandboxSpec

from .resolve import check_directory, check_environment, check_user

MIN_MEMORY_BYTES = 4 * MIB
MIN_CPU_CORES = 0.01
MIN_PIDS = 2  # PID 1 is counted too, and what makes the user namespace, or a command, is the second
MAX_LABELS = 64
MAX_LABEL_TEXT = 256
MAX_TOOLKITS = 64
MAX_KEY = 256

_HOSTNAME = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)


class Machine(NamedTuple):
    """What the node has, and what it gives to a sandbox that names no limits."""

    memory_bytes: int
    cpus: int
    pids: int
    default_memory_bytes: int
    default_pids: int


def check_spec(spec: SandboxSpec, machine: Machine) -> Limits:
    """The limits with the defaults in.

    :raises InvalidArgumentError: names the field, the value and the bound.
    """
    limits = _limits(spec.limits, machine)
    requests = spec.requests
    _between("requests.memory_bytes", requests.memory_bytes, 0, limits.memory_bytes or 0)
    _between("requests.pids", requests.pids, 1, limits.pids or 0)
    check_environment(spec.env)
    if spec.cwd is not None:
        check_directory(spec.cwd)
    if spec.user is not None:
        check_user(spec.user)
    if spec.hostname is not None and (len(spec.hostname) > 64 or not _HOSTNAME.fullmatch(spec.hostname)):
        raise InvalidArgumentError(f"cannot use hostname {spec.hostname[:100]!r}: not a host name", field="hostname")
    for field, seconds in (("ttl_idle_s", spec.ttl_idle_s), ("deadline_s", spec.deadline_s)):
        if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
            raise InvalidArgumentError(f"cannot use {field} {seconds}: it must be above 0", field=field)
    if len(spec.toolkits) > MAX_TOOLKITS:
        raise InvalidArgumentError(
            f"cannot use {len(spec.toolkits)} toolkits: the most is {MAX_TOOLKITS}", field="toolkits"
        )
    _check_labels(spec.labels)
    return limits


def check_key(key: str | None) -> None:
    """:raises InvalidArgumentError: an idempotency key that is empty or too long to be kept."""
    if key is not None and not 0 < len(key) <= MAX_KEY:
        raise InvalidArgumentError(
            f"cannot use an idempotency key of {len(key)} characters: it has 1 to {MAX_KEY}", field="idempotency_key"
        )


def _limits(asked: Limits, machine: Machine) -> Limits:
    memory = asked.memory_bytes
    if memory is None:
        memory = min(machine.default_memory_bytes, machine.memory_bytes)
    pids = asked.pids
    if pids is None:
        pids = min(machine.default_pids, machine.pids)
    _between("limits.memory_bytes", memory, MIN_MEMORY_BYTES, machine.memory_bytes)
    _between("limits.pids", pids, MIN_PIDS, machine.pids)
    if asked.cpu_cores is not None:
        _between("limits.cpu_cores", asked.cpu_cores, MIN_CPU_CORES, machine.cpus)
    for field in ("disk_bytes", "disk_inodes"):
        value = getattr(asked, field)
        if value is not None and value < 1:
            raise InvalidArgumentError(
                f"cannot use limits.{field} {value}: it must be above 0", field=f"limits.{field}"
            )
    if memory == asked.memory_bytes and pids == asked.pids:
        return asked
    return msgspec.structs.replace(asked, memory_bytes=memory, pids=pids)


def _between(field: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InvalidArgumentError(
            f"cannot use {field} {value}: this machine and its limits allow {least} to {most}", field=field, value=value
        )


def _check_labels(labels: dict[str, str]) -> None:
    if len(labels) > MAX_LABELS:
        raise InvalidArgumentError(f"cannot use {len(labels)} labels: the most is {MAX_LABELS}", field="labels")
    for name, value in labels.items():
        if not name or len(name) > MAX_LABEL_TEXT or len(value) > MAX_LABEL_TEXT:
            raise InvalidArgumentError(
                f"cannot use label {name[:64]!r}: name and value have at most {MAX_LABEL_TEXT} characters",
                field="labels",
            )
