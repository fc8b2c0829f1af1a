"""What a Dockerfile says, as data: words as they are written, since what their variables come to is known later."""

from __future__ import annotations

import msgspec


class Instruction(msgspec.Struct, frozen=True):
    line: int
    text: str
    """As written, its lines joined."""


class From(Instruction, frozen=True):
    image: str
    name: str | None = None
    """Of the stage, in lower case."""


class Arg(Instruction, frozen=True):
    pairs: tuple[tuple[str, str | None], ...]


class Env(Instruction, frozen=True):
    pairs: tuple[tuple[str, str], ...]


class Label(Instruction, frozen=True):
    pairs: tuple[tuple[str, str], ...]


class Program(Instruction, frozen=True):
    """Words in the exec form, or one command line for the shell."""

    words: tuple[str, ...] | None
    command: str = ""


class Run(Program, frozen=True):
    pass


class Cmd(Program, frozen=True):
    pass


class Entrypoint(Program, frozen=True):
    pass


class Copy(Instruction, frozen=True):
    sources: tuple[str, ...]
    target: str
    stage: str | None = None
    """`--from`."""
    owner: str | None = None
    """`--chown`."""
    literal: bool = False
    """Of the exec form: no quotes are taken off."""


class Workdir(Instruction, frozen=True):
    path: str


class User(Instruction, frozen=True):
    user: str


class Expose(Instruction, frozen=True):
    ports: tuple[str, ...]


class Shell(Instruction, frozen=True):
    words: tuple[str, ...]


class Stage(msgspec.Struct, frozen=True):
    number: int
    base: From
    instructions: tuple[Instruction, ...]

    @property
    def name(self) -> str:
        return self.base.name or str(self.number)


class Dockerfile(msgspec.Struct, frozen=True):
    arguments: tuple[Arg, ...]
    """Before the first FROM, for FROM."""
    stages: tuple[Stage, ...]
    escape: str

    def stage(self, name: str, before: int) -> Stage | None:
        """The last stage of that name, or the one of that number, among those above the stage `before`."""
        above = [stage for stage in self.stages[:before] if stage.base.name == name.lower()]
        if above:
            return above[-1]
        return self.stages[int(name)] if name.isascii() and name.isdecimal() and int(name) < before else None
