"""`dsec image build -f Dockerfile`: a build by the client, shown step by step."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import msgspec
import typer

from libdsec.client import DSecClient
from libdsec.protocol.environment import ImageInfo
from libdsec.protocol.errors import InvalidArgumentError
from libdsec.protocol.spec import Network

from .options import find_image, pairs, seconds
from .outcome import report
from .output import amount, emit, printable, say
from .registry_login import kept_login_for

if TYPE_CHECKING:
    from dsec.dockerfile.run import News

Progress = Literal["plain", "quiet"]

DirectoryArgument = Annotated[
    str | None, typer.Argument(metavar="DIRECTORY", help="Of files for a Dockerfile's COPY; with -f, default: here.")
]
FileOption = Annotated[
    str | None, typer.Option("--file", "-f", help="A Dockerfile, - for standard input; default: that of DIRECTORY.")
]
BuildArgOption = Annotated[
    list[str] | None, typer.Option("--build-arg", metavar="NAME=VALUE", help="For an ARG; may be given again.")
]
TargetOption = Annotated[str | None, typer.Option("--target", metavar="STAGE", help="The stage to build.")]
NetworkOption = Annotated[
    str, typer.Option("--network", help="private, or host: RUN has the node's own network (see SECURITY.md).")
]
NoCacheOption = Annotated[bool, typer.Option("--no-cache", help="Run every step, also what was run before.")]
ProgressOption = Annotated[str, typer.Option("--progress", help="plain: steps and what they print; quiet.")]
StepTimeoutOption = Annotated[
    float | None, typer.Option("--timeout", parser=seconds, metavar="TIME", help="Of one RUN at most: 2h. Default 1h.")
]

_STANDARD_INPUT = "-"
_LARGEST = 1024 * 1024


class Wanted(msgspec.Struct, frozen=True):
    """What the command line says of a build by a Dockerfile."""

    file: str | None
    directory: str
    arguments: Sequence[str]
    target: str | None
    network: str
    cache: bool
    progress: str
    timeout_s: float | None
    if_missing: bool


def refuse(given: Mapping[str, object], without: str = "") -> None:
    """:raises BadParameter: an option of the other way to build, which would be dropped."""
    for option, value in given.items():
        if value:
            why = f"goes only with {without}" if without else "does not go with a Dockerfile"
            raise typer.BadParameter(why, param_hint=option)


async def main(client: DSecClient, ref: str | None, wanted: Wanted, json: bool) -> int:
    """Builds, tells, and gives the exit code."""
    from dsec.dockerfile.refusals import StepFailedError  # only a build needs it

    if ref is None:
        raise InvalidArgumentError("cannot build an image without a name: give NAME:TAG", field="ref")
    try:
        info = await find_image(client, ref) if wanted.if_missing else None
        info = info or await _build(client, ref, wanted)
    except StepFailedError as error:
        report(json, error)
        return error.status
    if json:
        emit(info)
    else:
        size = amount(sum(layer.metadata_bytes + layer.data_bytes for layer in info.layers))
        say(f"{info.ref}: {size} in {len(info.layers)} layers")
    return 0


async def _build(client: DSecClient, ref: str, wanted: Wanted) -> ImageInfo:
    from dsec.dockerfile.run import STEP_TIMEOUT_S, Options, build

    if wanted.progress not in get_args(Progress):
        raise typer.BadParameter(f"{wanted.progress!r} is neither plain nor quiet", param_hint="--progress")
    networks: dict[str, Network] = {"private": "private", "host": "host"}
    if wanted.network not in networks:
        raise typer.BadParameter(f"{wanted.network!r} is neither private nor host", param_hint="--network")
    options = Options(
        arguments=pairs("--build-arg", wanted.arguments),
        target=wanted.target,
        network=networks[wanted.network],
        cache=wanted.cache,
        step_timeout_s=wanted.timeout_s or STEP_TIMEOUT_S,
        login_for=kept_login_for,
    )
    if wanted.progress == "quiet":
        return await build(client, ref, _text(wanted), wanted.directory, options, lambda _: None)
    return await build(client, ref, _text(wanted), wanted.directory, options, Shown(sys.stderr.isatty()))


def _text(wanted: Wanted) -> str:
    path = wanted.file if wanted.file is not None else os.path.join(wanted.directory, "Dockerfile")
    try:
        if path == _STANDARD_INPUT:
            content = sys.stdin.buffer.read(_LARGEST + 1)
        else:
            with open(path, "rb") as file:
                content = file.read(_LARGEST + 1)
    except OSError as error:
        raise InvalidArgumentError(f"cannot read {path}: {error.strerror}", field="file") from None
    if len(content) > _LARGEST:
        raise InvalidArgumentError(f"cannot read {path}: it has more than {_LARGEST} bytes", field="file")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidArgumentError(f"cannot read {path}: line {line} is no UTF-8", field="file") from None


class Shown:
    """Steps and what they print, on standard error: standard output is for the answer.

    A terminal does as it is told by what it shows, and a step is not to tell it anything: there, what moves the cursor,
    colours, or sets a title is shown as a sign for it. In a file or pipe are the bytes as the step has written them.
    """

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        self._decoders = {stream: _decoder() for stream in get_args(Literal["stdout", "stderr"])}
        self._in_line = False
        """What a step printed last did not end its line."""

    def __call__(self, news: News) -> None:
        if news.kind == "output":
            self._output(news)
            return
        ends = "\n" if self._terminal and self._in_line else ""
        cached = " (cached)" if news.kind == "cached" else ""
        sys.stderr.write(f"{ends}[{news.stage}:{news.line}] {printable(news.text)}{cached}\n")
        sys.stderr.flush()
        self._in_line = False
        self._decoders = {stream: _decoder() for stream in self._decoders}

    def _output(self, news: News) -> None:
        data = news.data
        if self._terminal:
            # of several lines; a return leaves none
            text = printable(self._decoders[news.stream].decode(data), "\n\t\r")
            self._in_line = not text.endswith("\n") if text else self._in_line
            data = text.encode(sys.stderr.encoding or "ascii", "replace")
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")
