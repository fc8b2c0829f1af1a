"""A stage as steps with every variable resolved, and the configuration of its image. Pure.

Directories that WORKDIR asks for are made with the step that comes next, or by a step of their own at the end.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from libdsec.protocol.environment import ImageConfig

from . import words
from .instructions import (
    Arg,
    Cmd,
    Copy,
    Dockerfile,
    Entrypoint,
    Env,
    Expose,
    From,
    Instruction,
    Label,
    Program,
    Run,
    Shell,
    Stage,
    User,
    Workdir,
)
from .refusals import refusal

PREDEFINED = frozenset(
    each
    for name in ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
    for each in (name, name.upper())
)
"""Arguments that need no ARG, are given to RUN alone, and are in no key: they say how, not what."""

DEFAULT_SHELL = ("/bin/sh", "-c")
SCRATCH = "scratch"
_KEY_GENERATION = 2
"""Of what steps are made by: another one finds nothing that an earlier one has kept."""
_PORT = re.compile(r"\d{1,5}(?:-\d{1,5})?(?:/(?:tcp|udp|sctp))?")
_USER = re.compile(r"[A-Za-z0-9_.-]+|\d+:\d+")


class Step(msgspec.Struct, frozen=True, tag=True):
    line: int
    text: str
    directories: tuple[str, ...]
    """To be made before, where they are missing."""


class RunStep(Step, frozen=True):
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    user: str


class CopyStep(Step, frozen=True):
    sources: tuple[str, ...]
    target: str
    """Absolute; with `/` at its end it is a directory."""
    stage: int | None
    image: str | None
    """Where from, if neither the caller's directory nor a stage."""
    owner: str | None


class MakeStep(Step, frozen=True):
    """Nothing but directories."""


class Planned(msgspec.Struct, frozen=True):
    steps: tuple[Step, ...]
    config: ImageConfig


def base_of(file: Dockerfile, stage: Stage, arguments: Mapping[str, str]) -> Stage | str:
    """What a stage starts from: a stage above it, or the name of an image, or `scratch`."""
    image = words.expand(stage.base.line, stage.base.image, global_arguments(file, arguments), file.escape)
    if not image:
        raise refusal(stage.base.line, f"FROM {stage.base.image[:100]} comes to nothing")
    return file.stage(image, stage.number) or image


def global_arguments(file: Dockerfile, arguments: Mapping[str, str]) -> dict[str, str]:
    """Of the ARGs before the first FROM."""
    found: dict[str, str] = {}
    for arg in file.arguments:
        for name, default in arg.pairs:
            if name in arguments:
                found[name] = arguments[name]
            elif default is not None:
                found[name] = words.expand(arg.line, default, found, file.escape)
    return found


def check_arguments(file: Dockerfile, arguments: Mapping[str, str]) -> None:
    """:raises InvalidArgumentError: one that no ARG asks for."""
    asked = list(file.arguments)
    asked += [each for stage in file.stages for each in stage.instructions if isinstance(each, Arg)]
    known = {name for arg in asked for name, _ in arg.pairs} | PREDEFINED
    for name in arguments:
        if name not in known:
            raise refusal(1, f"no ARG asks for the build argument {name[:60]!r}")


def needed_stages(file: Dockerfile, target: str | None, arguments: Mapping[str, str]) -> list[Stage]:
    """The target, the last stage if none is named, and what it needs, in their order.

    :raises InvalidArgumentError: no such stage.
    """
    last = file.stages[-1] if target is None else file.stage(target, len(file.stages))
    if last is None:
        names = ", ".join(stage.name for stage in file.stages)
        raise refusal(1, f"there is no stage {target!r}: there are {names}")
    needed: dict[int, Stage] = {}
    waiting = [last]
    while waiting:
        stage = waiting.pop()
        if stage.number in needed:
            continue
        needed[stage.number] = stage
        bases = [base_of(file, stage, arguments)]
        copies = [each for each in stage.instructions if isinstance(each, Copy) and each.stage is not None]
        bases += [other for copy in copies if (other := file.stage(copy.stage or "", stage.number)) is not None]
        waiting += [base for base in bases if isinstance(base, Stage)]
    return [needed[number] for number in sorted(needed)]


def plan_stage(
    file: Dockerfile, stage: Stage, base: ImageConfig, shell: tuple[str, ...], arguments: Mapping[str, str]
) -> tuple[Planned, tuple[str, ...]]:
    """The steps above an image of the configuration `base`, and the shell that a stage built on this one has.

    :raises InvalidArgumentError: names the line.
    """
    planning = _Planning(file, stage.number, base, shell, arguments)
    for instruction in stage.instructions:
        planning.take(instruction)
    planning.finish(stage.base)
    return Planned(tuple(planning.steps), planning.config()), planning.shell


def step_key(parent: Sequence[str], step: Step, content: str, network: str) -> str:
    """Names the image that a step makes. `parent`: the digests of the layers before it; `content`: of what it
    copies."""
    said = msgspec.to_builtins(step)
    del said["line"], said["text"]
    if isinstance(step, RunStep):
        said["env"] = {name: value for name, value in step.env.items() if name not in PREDEFINED}
        said["network"] = network
    whole = [_KEY_GENERATION, list(parent), said, content]
    return hashlib.sha256(msgspec.json.encode(whole, order="deterministic")).hexdigest()


@dataclass
class _Planning:
    file: Dockerfile
    number: int
    base: ImageConfig
    shell: tuple[str, ...]
    given: Mapping[str, str]
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._globals = global_arguments(self.file, self.given)
        self._arguments: dict[str, str] = {}
        self._env = dict(self.base.env)
        self._labels = dict(self.base.labels)
        self._ports = set(self.base.exposed_ports)
        self._cwd, self._user = self.base.cwd, self.base.user
        self._cmd, self._entrypoint = self.base.cmd, self.base.entrypoint
        self._cmd_is_own = False
        self._directories: list[str] = []

    def take(self, instruction: Instruction) -> None:
        match instruction:
            case Run():
                self._run(instruction)
            case Copy():
                self._copy(instruction)
            case Env():
                self._env |= self._pairs(instruction)
            case Label():
                self._labels |= self._pairs(instruction)
            case Arg():
                self._arg(instruction)
            case Workdir():
                self._cwd = self._path(instruction.line, instruction.path)
                self._directories.append(self._cwd)
            case User():
                self._set_user(instruction)
            case Cmd():
                self._cmd, self._cmd_is_own = self._words(instruction), True
            case Entrypoint():
                self._entrypoint = self._words(instruction)
                # what the base gave its own program means nothing to this one
                self._cmd = self._cmd if self._cmd_is_own else ()
            case Expose():
                self._expose(instruction)
            case Shell():
                self.shell = instruction.words
            case _:
                raise refusal(instruction.line, "this instruction cannot stand here")

    def finish(self, base: From) -> None:
        if self._directories:
            self.steps.append(MakeStep(base.line, "WORKDIR", self._taken_directories()))

    def config(self) -> ImageConfig:
        return msgspec.structs.replace(
            self.base,
            env=self._env,
            cwd=self._cwd,
            user=self._user,
            entrypoint=self._entrypoint,
            cmd=self._cmd,
            labels=self._labels,
            exposed_ports=tuple(sorted(self._ports)),
        )

    def _run(self, run: Run) -> None:
        always = {name: value for name, value in self.given.items() if name in PREDEFINED}
        env = {**always, **self._arguments, **self._env}
        step = RunStep(run.line, run.text, self._taken_directories(), self._words(run), env, self._cwd, self._user)
        self.steps.append(step)

    def _copy(self, copy: Copy) -> None:
        def resolved(word: str) -> str:
            # within the exec form quotes are a part of the name
            quoted = re.sub("['\"]", lambda quote: self.file.escape + quote[0], word) if copy.literal else word
            return self._expanded(copy.line, quoted)

        sources, target = tuple(resolved(word) for word in copy.sources), resolved(copy.target)
        if not target or not all(sources):
            raise refusal(copy.line, "a source or the target comes to nothing")
        many = len(sources) > 1
        if many and not target.endswith(("/", "/.")) and target != ".":
            raise refusal(copy.line, f"with more than one source, the target {target[:100]!r} must end with /")
        into = many or target.endswith(("/", "/.", "/..")) or target in (".", "..")
        path = self._path(copy.line, copy.target, target)
        stage = None if copy.stage is None else self.file.stage(copy.stage, self.number)
        self.steps.append(
            CopyStep(
                copy.line,
                copy.text,
                self._taken_directories(),
                sources,
                f"{path.rstrip('/')}/" if into else path,
                None if stage is None else stage.number,
                copy.stage if stage is None else None,
                None if copy.owner is None else self._expanded(copy.line, copy.owner),
            )
        )

    def _arg(self, arg: Arg) -> None:
        for name, default in arg.pairs:
            if name in self.given:
                self._arguments[name] = self.given[name]
            elif default is not None:
                self._arguments[name] = self._expanded(arg.line, default)
            elif name in self._globals:
                self._arguments[name] = self._globals[name]

    def _set_user(self, user: User) -> None:
        found = self._expanded(user.line, user.user)
        if not _USER.fullmatch(found):
            raise refusal(user.line, f"USER {found[:60]!r} is none of a name, a uid, or UID:GID")
        self._user = found

    def _expose(self, expose: Expose) -> None:
        for word in expose.ports:
            for port in self._expanded(expose.line, word).split():
                if not _PORT.fullmatch(port):
                    raise refusal(expose.line, f"EXPOSE {port[:40]!r} is no port: 80, 80/udp or 8000-8010")
                self._ports.add(port if "/" in port else f"{port}/tcp")

    def _words(self, program: Program) -> tuple[str, ...]:
        return program.words if program.words is not None else (*self.shell, program.command)

    def _pairs(self, instruction: Env | Label) -> dict[str, str]:
        """All values are what they are before the instruction."""
        return {
            self._expanded(instruction.line, name) if isinstance(instruction, Label) else name: self._expanded(
                instruction.line, value
            )
            for name, value in instruction.pairs
        }

    def _path(self, line: int, written: str, resolved: str | None = None) -> str:
        found = self._expanded(line, written) if resolved is None else resolved
        if not found:
            raise refusal(line, f"the path {written[:100]!r} comes to nothing")
        if "\0" in found:
            raise refusal(line, "a path has a zero byte")
        # normpath keeps two slashes at the beginning
        return "/" + posixpath.normpath(posixpath.join("/", self._cwd, found)).lstrip("/")

    def _expanded(self, line: int, word: str) -> str:
        return words.expand(line, word, {**self._arguments, **self._env}, self.file.escape)

    def _taken_directories(self) -> tuple[str, ...]:
        found, self._directories = tuple(dict.fromkeys(self._directories)), []
        return found
