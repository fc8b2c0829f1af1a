"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from libdsec.args import DSecContainerRunArgs
from libdsec.client import DSecClient
from libdsec.protocol.environment import ImageInfo
from libdsec.protocol.errors import ImageNotFoundError, InvalidArgumentError, SandboxNotFoundError
from libdsec.protocol.ids import EDGE_PREFIX_LENGTH, is_sandbox_id
from libdsec.protocol.lifecycle import FINAL, State
from libdsec.sandbox import Sandbox

from .completion import jobs, sandboxes

_SIZES = {"": 1.0, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0 * 1024}
_TIMES = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def mebibytes(text: str) -> float:
    """`512`, `512m`, `2g`, `1.5G`, `2GiB` → MiB; a bare number is MiB."""
    return _quantity(text, r"([kmgt]?)(?:i?b)?", _SIZES, "a size such as 512m or 2g")


def seconds(text: str) -> float:
    """`30`, `30s`, `5m`, `1.5h` → seconds."""
    return _quantity(text, r"(ms|s|m|min|h|d|)", _TIMES, "a time such as 30s or 5m")


def _quantity(text: str, units: str, factors: dict[str, float], form: str) -> float:
    match = re.fullmatch(rf"(\d+(?:\.\d+)?)\s*{units}", text.strip().lower())
    if match is None or float(match[1]) == 0:
        raise typer.BadParameter(f"{text!r} is not {form}")
    return float(match[1]) * factors[match[2]]


JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
SandboxArgument = Annotated[
    str,
    typer.Argument(
        metavar="SANDBOX", help="An id, or a unique beginning of what follows the node in it.", autocompletion=sandboxes
    ),
]
SandboxesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="SANDBOX...", help="Ids, or beginnings.", autocompletion=sandboxes)
]
JobOption = Annotated[
    str | None, typer.Option("--job", metavar="JOB", help="All sandboxes of a job.", autocompletion=jobs)
]
OwnJobOption = Annotated[
    str | None, typer.Option("--job", metavar="JOB", help="The job that it belongs to.", autocompletion=jobs)
]


def _without_separator(command: list[str] | None) -> list[str]:
    """Without the `--` that stands between a sandbox and its command: options end at the sandbox already, so the parser
    leaves the separator in the command."""
    words = command or []
    return words[1:] if words[:1] == ["--"] and len(words) > 1 else words


CommandArgument = Annotated[
    list[str],
    typer.Argument(metavar="COMMAND", help="The program and its arguments.", callback=_without_separator),
]
OwnCommandArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="COMMAND",
        help="The program and its arguments; without them the image's entrypoint and command.",
        callback=_without_separator,
    ),
]
ImageOption = Annotated[
    str | None,
    typer.Option("--image", envvar="DSEC_IMAGE", help="NAME:TAG. Without it, the only base image that there is."),
]
WorkspaceOption = Annotated[str | None, typer.Option(help="NAME:TAG of a workspace above the image.")]
ToolkitOption = Annotated[list[str] | None, typer.Option("--toolkit", help="NAME:TAG; may be given again.")]
MemoryOption = Annotated[float | None, typer.Option(parser=mebibytes, metavar="SIZE", help="Memory limit: 512m, 2g.")]
CpusOption = Annotated[float | None, typer.Option(help="Cores' worth of processor time, such as 0.5.")]
PidsOption = Annotated[int | None, typer.Option(help="Processes and threads at most.")]
DiskOption = Annotated[float | None, typer.Option(parser=mebibytes, metavar="SIZE", help="What may be written: 1g.")]
InodesOption = Annotated[int | None, typer.Option("--disk-inodes", help="Files that may be made.")]
EnvOption = Annotated[list[str] | None, typer.Option("--env", "-e", metavar="NAME=VALUE", help="May be given again.")]
UserOption = Annotated[str | None, typer.Option("--user", "-u", help="A name, a uid, or UID:GID.")]
CwdOption = Annotated[str | None, typer.Option("--cwd", "-w", help="The working directory.")]
HostnameOption = Annotated[str | None, typer.Option(help="The host's name inside.")]
LabelOption = Annotated[
    list[str] | None, typer.Option("--label", "-l", metavar="NAME=VALUE", help="May be given again.")
]
TtlOption = Annotated[
    float | None, typer.Option("--ttl", parser=seconds, metavar="TIME", help="Stop when unused for so long: 10m.")
]
DeadlineOption = Annotated[
    float | None, typer.Option(parser=seconds, metavar="TIME", help="Stop after so long, whatever happens: 2h.")
]
NestedOption = Annotated[bool, typer.Option("--nested-user-namespaces", help="Allow user namespaces inside.")]
TimeoutOption = Annotated[
    float | None,
    typer.Option(parser=seconds, metavar="TIME", help="Kill the command and all it started after so long: 30s."),
]
InteractiveOption = Annotated[bool, typer.Option("--interactive", "-i", help="Pass standard input on.")]
TtyOption = Annotated[bool, typer.Option("--tty", "-t", help="Give the command a terminal.")]


_ARGUMENTS = {
    "workspace": "workspace",
    "toolkit": "toolkits",
    "memory": "memory_limit_mb",
    "cpus": "cpu_cores_limit",
    "pids": "pids_limit",
    "disk": "disk_limit_mb",
    "disk_inodes": "disk_inodes_limit",
    "ttl": "ttl_running_stop",
    "deadline": "deadline",
    "user": "init_user",
    "cwd": "cwd",
    "hostname": "hostname",
    "nested_user_namespaces": "nested_user_namespaces",
    "job": "job",
}
"""Of `dsec run` and `create`: option → argument of the SDK."""


def pairs(option: str, values: Sequence[str] | None) -> dict[str, str]:
    """`NAME=VALUE` … → a map."""
    found = {}
    for value in values or ():
        name, sign, rest = value.partition("=")
        if not sign or not name:
            raise InvalidArgumentError(f"cannot use {option} {value!r}: it must be NAME=VALUE", field=option)
        found[name] = rest
    return found


async def find_image(client: DSecClient, ref: str) -> ImageInfo | None:
    """The image of that name; None where there is none."""
    try:
        return await client.image(ref)
    except ImageNotFoundError:
        return None


async def image_or_only(client: DSecClient, image: str | None) -> str:
    """The image asked for, or the one base image there is."""
    if image is not None:
        return image
    bases = [info.ref for info in await client.images() if info.kind == "base"]
    if len(bases) == 1:
        return bases[0]
    if not bases:
        raise ImageNotFoundError("cannot choose an image: there is none yet", remedy="make one with `dsec image build`")
    raise InvalidArgumentError(f"cannot choose an image: there are {', '.join(sorted(bases))}; say which with --image")


def _begins(sandbox: str, text: str) -> bool:
    return bool(text) and (sandbox.startswith(text) or sandbox[EDGE_PREFIX_LENGTH:].startswith(text))


async def find_sandbox(client: DSecClient, text: str) -> Sandbox:
    """The sandbox whose id is `text`, or begins with it, the node's part of the id left out or not. Those that have
    ended are meant only when no other is.

    :raises SandboxNotFoundError: none does.
    :raises InvalidArgumentError: several do.
    """
    if is_sandbox_id(text):
        return client.sandbox(text)
    begin = [info for info in await client.list(include_final=True) if _begins(info.id, text)]
    found = [info.id for info in begin if State(info.state) not in FINAL] or [info.id for info in begin]
    if not found:
        raise SandboxNotFoundError(f"cannot find a sandbox {text!r}: no id begins so", sandbox=text)
    if len(found) > 1:
        some = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        raise InvalidArgumentError(f"cannot tell which sandbox {text!r} is: {len(found)} ids begin so ({some})")
    return client.sandbox(found[0])


def container_args(image: str, options: Mapping[str, Any]) -> DSecContainerRunArgs:
    """The SDK's arguments from a command's options, by name as its context has them."""
    given = {argument: options[name] for name, argument in _ARGUMENTS.items() if options[name] not in (None, [], ())}
    env, labels = pairs("--env", options["env"]), pairs("--label", options["label"])
    return DSecContainerRunArgs(container_image=image, env=env, labels=labels, **given)
