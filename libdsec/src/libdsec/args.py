"""What a caller asks for, in the SDK's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .protocol.environment import parse_ref
from .protocol.errors import InvalidArgumentError
from .protocol.spec import MIB, Limits, Network, Requests, SandboxSpec
from .protocol.steps import check_scope_name


class DSecContainerRunArgs(msgspec.Struct, frozen=True, kw_only=True):
    """A container to create. None leaves the choice to the node; an unknown name is a `TypeError`.

    What a node or backend cannot honour is refused when the sandbox is created, never left out.
    """

    container_image: str
    """`name:tag` of a published base image."""
    workspace: str | None = None
    """`name:tag` of a workspace layer above the image."""
    toolkits: Sequence[str] = ()
    """`name:tag` of toolkits above the workspace, the first one lowest."""
    memory_limit_mb: float | None = None
    """MiB of memory, including page cache that only this sandbox uses."""
    cpu_cores_limit: float | None = None
    pids_limit: int | None = None
    disk_limit_mb: float | None = None
    """MiB that may be written. An error at create where the machine cannot bound it."""
    disk_inodes_limit: int | None = None
    memory_request_mb: float | None = None
    """MiB that admission reserves; limits may overcommit a node, requests may not."""
    pids_request: int | None = None
    ttl_running_stop: float | None = None
    """Stop after so many seconds without a call."""
    deadline: float | None = None
    """Stop after so many seconds of life, whatever happens."""
    network: Network = "private"
    """`host` is the node's own network, for those who may build images."""
    network_rules: Mapping[str, bool] = {}
    init_user: str | int | None = None
    """Who runs commands and touches files by default: a name, a uid, or `user:group`; None is the image's."""
    env: Mapping[str, str] = {}
    cwd: str | None = None
    """Where commands run by default; None is the image's."""
    hostname: str | None = None
    labels: Mapping[str, str] = {}
    nested_user_namespaces: bool = False
    job: str | None = None
    """The job it belongs to, for what is done to all of a job at once; None of a rollout's is the rollout's."""

    def to_spec(self) -> SandboxSpec:
        """The wire form.

        :raises InvalidArgumentError: a value that no node could honour; says which.
        """
        if isinstance(self.toolkits, str):
            raise InvalidArgumentError(
                f"cannot use toolkits={self.toolkits!r}: it must be a list of NAME:TAG", field="toolkits"
            )
        limits = self._limits()
        spec = _checked(
            SandboxSpec(
                image=self.container_image,
                workspace=self.workspace,
                toolkits=tuple(self.toolkits),
                limits=limits,
                requests=self._requests(limits),
                env=dict(self.env),
                cwd=self.cwd,
                user=None if self.init_user is None else str(self.init_user),
                hostname=self.hostname,
                ttl_idle_s=_positive("ttl_running_stop", self.ttl_running_stop),
                deadline_s=_positive("deadline", self.deadline),
                network=self.network,
                network_rules=dict(self.network_rules),
                nested_user_namespaces=self.nested_user_namespaces,
                labels=dict(self.labels),
                job=None if self.job is None else check_scope_name(self.job, "job"),
            )
        )
        for reference in (spec.image, *((spec.workspace,) if spec.workspace is not None else ()), *spec.toolkits):
            parse_ref(reference)
        return spec

    def _limits(self) -> Limits:
        return Limits(
            memory_bytes=_bytes("memory_limit_mb", self.memory_limit_mb),
            cpu_cores=_positive("cpu_cores_limit", self.cpu_cores_limit),
            pids=_positive("pids_limit", self.pids_limit),
            disk_bytes=_bytes("disk_limit_mb", self.disk_limit_mb),
            disk_inodes=_positive("disk_inodes_limit", self.disk_inodes_limit),
        )

    def _requests(self, limits: Limits) -> Requests:
        """What was not said is the vocabulary's default, but never more than the limit."""
        default = Requests()
        return Requests(
            _bytes("memory_request_mb", self.memory_request_mb)
            or min(default.memory_bytes, limits.memory_bytes or default.memory_bytes),
            _positive("pids_request", self.pids_request) or min(default.pids, limits.pids or default.pids),
        )


def _positive(field: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e15:
        raise InvalidArgumentError(f"cannot use {field}={value!r}: it must be a number above 0", field=field)
    return value


def _bytes(field: str, mebibytes: Any) -> int | None:
    value = _positive(field, mebibytes)
    return None if value is None else max(1, int(value * MIB))


def _checked(spec: SandboxSpec) -> SandboxSpec:
    """The spec itself, each field of its declared type: structs do not check their own construction."""
    try:
        return msgspec.convert(msgspec.to_builtins(spec), SandboxSpec)
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidArgumentError(f"cannot use these run arguments: {error}") from None
