"""An image's config document: the defaults of what runs in it, and the digests of its layers uncompressed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from dsec.store.records import config_fault
from libdsec.protocol.environment import ImageConfig
from libdsec.protocol.errors import UnsupportedOperationError

from .manifest import MAX_LAYERS, MAX_MANIFEST_BYTES, architecture, broken

MAX_HISTORY: Final = 4096
MAX_TEXT: Final = 200

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class _Defaults(msgspec.Struct):
    """The names are the document's."""

    User: str | None = None
    ExposedPorts: dict[str, Any] | None = None
    Env: list[str] | None = None
    Entrypoint: list[str] | str | None = None
    Cmd: list[str] | str | None = None
    WorkingDir: str | None = None
    Labels: dict[str, str] | None = None
    StopSignal: str | None = None


class _RootFs(msgspec.Struct):
    diff_ids: tuple[str, ...] = ()
    type: str = "layers"


class _Step(msgspec.Struct):
    created_by: str | None = None
    empty_layer: bool = False


class _Document(msgspec.Struct):
    architecture: str = ""
    os: str = ""
    config: _Defaults | None = None
    rootfs: _RootFs = msgspec.field(default_factory=_RootFs)
    history: tuple[_Step, ...] | None = None


@dataclass(frozen=True, slots=True)
class OciConfig:
    config: ImageConfig
    diff_ids: tuple[str, ...]
    """Lowest first."""
    made_by: tuple[str, ...]
    """Beside them, in the words of whoever made the image; empty where it does not say."""


_decode = msgspec.json.Decoder(_Document).decode


def parse_config(body: bytes, where: str) -> OciConfig:
    """:raises InvalidArgumentError: no config document, or it breaks a bound.
    :raises UnsupportedOperationError: of another system or another processor."""
    if len(body) > MAX_MANIFEST_BYTES:
        raise broken(where, f"its config has {len(body)} bytes, the most is {MAX_MANIFEST_BYTES}")
    try:
        document = _decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise broken(where, f"its config cannot be read: {error}") from None
    made_for = (document.os, document.architecture)
    if made_for != ("linux", architecture()):
        raise UnsupportedOperationError(
            f"cannot use {where}: it is made for {'/'.join(made_for)[:100]}, this node is linux/{architecture()}"
        )
    diff_ids = document.rootfs.diff_ids
    if len(diff_ids) > MAX_LAYERS or document.rootfs.type != "layers":
        raise broken(where, f"its config names {len(diff_ids)} layers, the most is {MAX_LAYERS}")
    for diff_id in diff_ids:
        if not _DIGEST.fullmatch(diff_id):
            raise broken(where, f"{diff_id[:100]!r} in its config is no SHA-256 digest")
    defaults = _image_config(document.config or _Defaults(), where)
    return OciConfig(defaults, diff_ids, _made_by(document.history or (), len(diff_ids)))


def _image_config(defaults: _Defaults, where: str) -> ImageConfig:
    env: dict[str, str] = {}
    for pair in defaults.Env or ():
        name, _, value = pair.partition("=")
        if not name or "\0" in pair:
            raise broken(where, f"its config has the environment variable {pair[:100]!r}")
        env[name] = value
    cwd = defaults.WorkingDir or "/"
    words = (cwd, defaults.User or "", *_words(defaults.Entrypoint), *_words(defaults.Cmd))
    if any("\0" in word for word in words):
        raise broken(where, "its config has a zero byte in a path, a user or a command")
    config = ImageConfig(
        env=env,
        cwd=cwd if cwd.startswith("/") else f"/{cwd}",
        user=defaults.User or "root",
        entrypoint=_words(defaults.Entrypoint),
        cmd=_words(defaults.Cmd),
        labels=defaults.Labels or {},
        exposed_ports=tuple(sorted(defaults.ExposedPorts or {})),
        stop_signal=defaults.StopSignal or "",
    )
    if (fault := config_fault(config)) is not None:
        raise broken(where, fault)
    return config


def _words(command: list[str] | str | None) -> tuple[str, ...]:
    """Some old documents have a line for the shell where a list belongs."""
    if isinstance(command, str):
        return ("/bin/sh", "-c", command) if command else ()
    return tuple(command or ())


def _made_by(history: Sequence[_Step], layers: int) -> tuple[str, ...]:
    steps = [step for step in history[:MAX_HISTORY] if not step.empty_layer]
    if len(steps) != layers:
        return ("",) * layers
    return tuple((step.created_by or "")[:MAX_TEXT] for step in steps)


def make_config(
    config: ImageConfig, diff_ids: Sequence[str], history: Sequence[Mapping[str, Any]], created: str
) -> bytes:
    """The config document of an image made here. `history` has an entry a layer, as the document has them; `created`
    is a time of RFC 3339."""
    defaults: dict[str, Any] = {
        "User": "" if config.user == "root" else config.user,
        "Env": [f"{name}={value}" for name, value in config.env.items()],
        "Entrypoint": list(config.entrypoint) or None,
        "Cmd": list(config.cmd) or None,
        "WorkingDir": config.cwd,
        "Labels": config.labels,
        "ExposedPorts": {port: {} for port in config.exposed_ports},
        "StopSignal": config.stop_signal,
    }
    document = {
        "created": created,
        "architecture": architecture(),
        "os": "linux",
        "config": {name: value for name, value in defaults.items() if value},
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
        "history": list(history),
    }
    return msgspec.json.encode(document)
