"""A build from its text to its image: stage by stage, step by step."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import stat
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

import msgspec

from libdsec import DSecClient, DSecContainerRunArgs, Sandbox
from libdsec.protocol.environment import BUILD_CACHE as CACHE
from libdsec.protocol.environment import ImageConfig, ImageInfo, parse_ref, require_not_cached
from libdsec.protocol.errors import AlreadyExistsError, DSecError, ImageNotFoundError, InvalidArgumentError
from libdsec.protocol.exec import ExecResult
from libdsec.protocol.images import RegistryLogin
from libdsec.protocol.spec import Network

from . import copying
from .context import Context
from .instructions import Dockerfile, Stage
from .lines import MAX_BYTES
from .parse import parse
from .patterns import Ignore
from .plan import (
    DEFAULT_SHELL,
    SCRATCH,
    CopyStep,
    RunStep,
    Step,
    base_of,
    check_arguments,
    needed_stages,
    plan_stage,
    step_key,
)
from .refusals import StepFailedError, at_line, refusal

ORPHAN_S = 300.0
"""When the client is killed, the sandbox of its step is one that nobody uses, and goes by itself. Nobody uses it while
files for it are packed, either."""
CREATE_S = 300.0
STEP_TIMEOUT_S = 3600.0
MAX_COMMENT = 500
"""Characters of a step that the image's history shows."""

_CACHED = re.compile(rf"{CACHE}/(?P<key>[0-9a-f]{{64}}):(?P<number>[1-9][0-9]{{0,8}})")
_REGISTRY = re.compile(r"(?P<host>localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9.-]+(?=:))(?::(?P<port>\d+))?/")
_LOOPBACK = re.compile(r"localhost|127(?:\.\d+){3}")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    arguments: Mapping[str, str] = {}
    """`--build-arg`."""
    target: str | None = None
    network: Network = "private"
    cache: bool = True
    """False: every step is run, and its image takes the place of the one in the cache."""
    step_timeout_s: float = STEP_TIMEOUT_S
    """Of one RUN."""
    login_for: Callable[[str], RegistryLogin | None] = lambda source: None
    """Who asks for an image that is pulled, as `docker://HOST/NAME:TAG`."""


class News(msgspec.Struct, frozen=True):
    """Of a build under way."""

    kind: Literal["step", "cached", "output"]
    stage: str
    line: int
    text: str = ""
    """Of a step: the instruction."""
    stream: Literal["stdout", "stderr"] = "stdout"
    data: bytes = b""


Say = Callable[[News], None]


class _Made(msgspec.Struct, frozen=True):
    """An image on the way."""

    ref: str
    layers: tuple[str, ...]
    config: ImageConfig
    shell: tuple[str, ...] = DEFAULT_SHELL


async def build(client: DSecClient, ref: str, text: str, directory: str, options: Options, say: Say) -> ImageInfo:
    """The Dockerfile `text` over the files of `directory`, published as `ref`.

    :raises InvalidArgumentError: the file is wrong; names the line. Or the name is one of the cache's. Nothing was run.
    :raises AlreadyExistsError: the name is taken. Nothing was run.
    :raises StepFailedError: a RUN ended with anything but 0. No sandbox is left; the steps before it are in the cache.
    """
    require_not_cached(ref)
    file = parse(text)
    check_arguments(file, options.arguments)
    stages = needed_stages(file, options.target, options.arguments)
    context = Context(directory, await asyncio.to_thread(_ignored, directory))
    images = {info.ref: info for info in await client.images()}
    if ref in images:
        raise AlreadyExistsError(f"cannot build {ref}: the name is taken, and images never change", ref=ref)
    try:
        made = await _Build(client, file, context, options, say, images).all(stages)
    finally:
        context.close()
    return await client.build_image(ref, f"image:{made.ref}", config=made.config)


def _ignored(directory: str) -> Ignore:
    if not os.path.isdir(directory):
        raise InvalidArgumentError(f"cannot build in {directory}: there is no such directory", field="context")
    try:
        return Ignore(_read_ignore(os.path.join(directory, ".dockerignore")))
    except FileNotFoundError:
        return Ignore()


def _read_ignore(path: str) -> str:
    """Whoever made the directory may have put a FIFO there, or a link to a device that never ends."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InvalidArgumentError(f"cannot use {path}: it is no file", field="context")
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InvalidArgumentError(f"cannot read {path}: {error.strerror}", field="context") from error
    if len(content) > MAX_BYTES:
        raise InvalidArgumentError(f"cannot use {path}: it has more than {MAX_BYTES} bytes", field="context")
    return content.decode("utf-8", "surrogateescape")


class _Build:
    def __init__(
        self,
        client: DSecClient,
        file: Dockerfile,
        context: Context,
        options: Options,
        say: Say,
        images: Mapping[str, ImageInfo],
    ) -> None:
        self._client = client
        self._file = file
        self._context = context
        self._options = options
        self._say = say
        self._newest: dict[str, int] = {}
        """Key of a step → the number of its latest image."""
        for name in images:
            if (match := _CACHED.fullmatch(name)) is not None:
                number = int(match["number"])
                self._newest[match["key"]] = max(number, self._newest.get(match["key"], 0))
        self._stages: dict[int, _Made] = {}

    async def all(self, stages: list[Stage]) -> _Made:
        for stage in stages:
            self._stages[stage.number] = await self._stage(stage)
        return self._stages[stages[-1].number]

    async def _stage(self, stage: Stage) -> _Made:
        base = base_of(self._file, stage, self._options.arguments)
        if isinstance(base, Stage):
            made = self._stages[base.number]
        else:
            self._say(News("step", stage.name, stage.base.line, stage.base.text))
            try:
                made = await self._image(base, stage.base.line)
            except DSecError as error:
                raise at_line(error, stage.base.line) from error
        planned, shell = plan_stage(self._file, stage, made.config, made.shell, self._options.arguments)
        for step in planned.steps:
            try:
                made = await self._step(stage, made, step)
            except DSecError as error:
                raise at_line(error, step.line) from error
        return _Made(made.ref, made.layers, planned.config, shell)

    async def _image(self, name: str, line: int) -> _Made:
        """A local image, or one of a registry, which is pulled."""
        if name == SCRATCH:
            return await self._scratch()
        try:
            return _made(await self._client.image(name))
        except ImageNotFoundError:
            pass
        except InvalidArgumentError:
            pass  # no name of ours: it may be one of a registry
        match = _REGISTRY.match(name)
        if match is None:
            why = f"there is no image {name[:200]!r} here: pull or build it first, or say HOST/NAME:TAG"
            raise refusal(line, why)
        local = local_name(name, line)
        try:
            return _made(await self._client.image(local))
        except ImageNotFoundError:
            source, plain = f"docker://{name}", _LOOPBACK.fullmatch(match["host"]) is not None
            login = self._options.login_for(source)
            pulling = self._client.pull_image(source, local, login=login, plain_http=plain)
            return _made(await self._or_found(pulling, local))

    async def _scratch(self) -> _Made:
        ref = f"{CACHE}/{SCRATCH}:1"
        try:
            return _made(await self._client.image(ref))
        except ImageNotFoundError:
            return _made(await self._or_found(self._client.build_image(ref, "empty:/"), ref))

    async def _or_found(self, making: Awaitable[ImageInfo], ref: str) -> ImageInfo:
        """The image that is made under this name, or the one that another build has made of the same meanwhile."""
        try:
            return await making
        except AlreadyExistsError:
            return await self._client.image(ref)

    async def _step(self, stage: Stage, base: _Made, step: Step) -> _Made:
        chosen = await self._chosen(step)
        content = "" if chosen is None else chosen if isinstance(chosen, str) else chosen.digest
        key = step_key(base.layers, step, content, self._options.network)
        newest = self._newest.get(key, 0)
        if newest and self._options.cache:
            try:
                found = await self._client.image(f"{CACHE}/{key}:{newest}")
            except ImageNotFoundError:
                pass  # removed meanwhile
            else:
                self._say(News("cached", stage.name, step.line, step.text))
                return msgspec.structs.replace(_made(found), shell=base.shell)
        self._say(News("step", stage.name, step.line, step.text))
        ref = f"{CACHE}/{key}:{newest + 1}"
        async with await self._sandbox(base.ref, self._options.network) as sandbox:
            for directory in step.directories:
                await sandbox.files.mkdir(directory, parents=True)
            if isinstance(step, RunStep):
                await self._run(stage, sandbox, step)
            elif isinstance(step, CopyStep):
                if isinstance(chosen, copying.Chosen):
                    await copying.from_context(sandbox, step, chosen)
                else:
                    source = await self._source(step)
                    await copying.from_sandbox(sandbox, step, await self._sandbox(source.ref, "private"))
            image = await self._or_found(_packed(sandbox, ref, step), ref)
        self._newest[key] = newest + 1
        return msgspec.structs.replace(_made(image), shell=base.shell)

    async def _chosen(self, step: Step) -> copying.Chosen | str | None:
        """What a COPY takes: files of the caller's directory, or by its layers another image."""
        if not isinstance(step, CopyStep):
            return None
        if step.stage is None and step.image is None:
            return await asyncio.to_thread(copying.choose, self._context, step)
        return " ".join((await self._source(step)).layers)

    async def _source(self, step: CopyStep) -> _Made:
        if step.stage is not None:
            return self._stages[step.stage]
        return await self._image(step.image or "", step.line)

    async def _sandbox(self, ref: str, network: Network) -> Sandbox:
        args = DSecContainerRunArgs(
            container_image=ref, init_user="root", cwd="/", ttl_running_stop=ORPHAN_S, network=network
        )
        return await self._client.run_container(args, timeout=CREATE_S)

    async def _run(self, stage: Stage, sandbox: Sandbox, step: RunStep) -> None:
        process = await sandbox.exec_stream(
            step.argv, env=step.env, cwd=step.cwd, user=step.user, timeout=self._options.step_timeout_s
        )
        async with process:
            async for stream, data in process.output():
                self._say(News("output", stage.name, step.line, stream=stream, data=data))
            result = await process.wait()
        if not result.ok:
            why = f"cannot build line {step.line} of the Dockerfile: {step.text[:200]!r} ended with {result.how()}"
            raise StepFailedError(why, _status(result), step.line, result.ended)


async def _packed(sandbox: Sandbox, ref: str, step: Step) -> ImageInfo:
    packed = await sandbox.pack_diff(ref, kind="base", scrub=False, comment=step.text[:MAX_COMMENT])
    return packed.image


def _status(result: ExecResult) -> int:
    if result.ended == "exited":
        return result.exit_code or 1
    return 128 + (result.signal or signal.SIGKILL) if result.ended == "signaled" else 124


def _made(info: ImageInfo) -> _Made:
    if info.kind != "base":
        raise InvalidArgumentError(f"cannot build from {info.ref}: it is a {info.kind}, not a base", field="dockerfile")
    return _Made(info.ref, tuple(layer.digest for layer in info.layers), info.config)


def local_name(name: str, line: int) -> str:
    """What an image of a registry is called here: all of its name, its registry included.

    :raises InvalidArgumentError: no tag and no digest; a tag is never guessed.
    """
    place, at, digest = name.partition("@")
    host, _, path = place.partition("/")
    path, colon, tag = path.partition(":")
    if at:
        tag = digest.replace(":", "-")
    elif not colon:
        raise refusal(line, f"{name[:200]!r} has neither a tag nor a digest")
    local = f"{host.replace(':', '-').lower()}/{path}:{tag}"
    try:
        parse_ref(local)
    except InvalidArgumentError:
        raise refusal(line, f"{name[:200]!r} cannot be the name of an image") from None
    return local
