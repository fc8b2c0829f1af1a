"""A Dockerfile's text to its stages. What is not known is refused with its line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

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
    Run,
    Shell,
    Stage,
    User,
    Workdir,
)
from .lines import Line, read_lines
from .refusals import refusal

MAX_STAGES = 100

_GAP = re.compile(r"[ \t\r\f\v]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STAGE_NAME = re.compile(r"[a-z][a-z0-9_.-]*")
_FLAG = re.compile(r"--(?P<name>[a-zA-Z][a-zA-Z0-9-]*)(?:=(?P<value>\S*))?(?:[ \t]+|$)")
_HEREDOC = re.compile(r"(?<![<\w])\d*<<-?(['\"]?)[A-Za-z_][A-Za-z0-9_]*\1(?!<)")


class _Said:
    """One line, its keyword and flags taken off."""

    def __init__(self, line: Line, escape: str) -> None:
        keyword, *rest = _GAP.split(line.text, maxsplit=1)
        self.line, self.text, self.escape = line.number, line.text, escape
        self.keyword, self.rest = keyword.upper(), rest[0].strip() if rest else ""
        self.flags: dict[str, str | None] = {}

    def take_flags(self, *known: str) -> None:
        """:raises InvalidArgumentError: one that is not known, or given twice."""
        while (match := _FLAG.match(self.rest)) is not None:
            name = match["name"]
            if name not in known:
                raise refusal(self.line, f"{self.keyword} --{name} is not supported")
            if name in self.flags:
                raise refusal(self.line, f"{self.keyword} --{name} is given twice")
            if not match["value"]:
                raise refusal(self.line, f"{self.keyword} --{name} needs a value")
            self.flags[name] = match["value"]
            self.rest = self.rest[match.end() :]

    def need_rest(self) -> str:
        if not self.rest:
            raise refusal(self.line, f"{self.keyword} needs an argument")
        return self.rest

    def words(self) -> list[str]:
        return words.split(self.line, self.need_rest(), self.escape)

    def json(self) -> tuple[str, ...] | None:
        """The exec form, if it is one."""
        if not self.rest.startswith("["):
            return None
        try:
            found = json.loads(self.rest)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, list) or not all(isinstance(word, str) and "\0" not in word for word in found):
            return None
        return tuple(found)

    def no_heredoc(self) -> None:
        if _HEREDOC.search(self.rest):
            raise refusal(self.line, f"{self.keyword} with a here-document (<<) is not supported")


def parse(text: str) -> Dockerfile:
    """:raises InvalidArgumentError: names the line."""
    lines, escape = read_lines(text)
    arguments: list[Arg] = []
    stages: list[tuple[From, list[Instruction]]] = []
    for line in lines:
        if "\0" in line.text:
            raise refusal(line.number, "it has a zero byte")
        instruction = _instruction(_Said(line, escape))
        if isinstance(instruction, From):
            if len(stages) >= MAX_STAGES:
                raise refusal(line.number, f"there are more than {MAX_STAGES} stages")
            stages.append((instruction, []))
        elif stages:
            stages[-1][1].append(instruction)
        elif isinstance(instruction, Arg):
            arguments.append(instruction)
        else:
            raise refusal(line.number, "only ARG may stand before the first FROM")
    if not stages:
        raise refusal(1, "there is no FROM")
    made = (Stage(number, base, tuple(inside)) for number, (base, inside) in enumerate(stages))
    return Dockerfile(tuple(arguments), tuple(made), escape)


def _instruction(said: _Said) -> Instruction:
    read = _KNOWN.get(said.keyword)
    if read is None:
        raise refusal(said.line, f"the instruction {said.keyword[:40]!r} is not supported")
    return read(said)


def _from(said: _Said) -> From:
    said.take_flags()
    found = said.words()
    if len(found) == 1:
        return From(said.line, said.text, found[0])
    if len(found) != 3 or found[1].upper() != "AS":
        raise refusal(said.line, "FROM is followed by an image, or by an image, AS and a name")
    name = found[2].lower()
    if not _STAGE_NAME.fullmatch(name):
        raise refusal(said.line, f"a stage cannot be called {found[2][:60]!r}: letters, digits, and . _ -")
    return From(said.line, said.text, found[0], name)


def _arg(said: _Said) -> Arg:
    pairs: list[tuple[str, str | None]] = []
    for word in said.words():
        name, equals, value = word.partition("=")
        pairs.append((_variable(said, name), value if equals else None))
    return Arg(said.line, said.text, tuple(pairs))


def _variable(said: _Said, name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise refusal(said.line, f"{said.keyword} cannot set {name[:60]!r}: it is no name of a variable")
    return name


def _pairs(said: _Said) -> tuple[tuple[str, str], ...]:
    """`NAME=VALUE …`, or in the old form `NAME the rest`."""
    found = said.words()
    if "=" not in found[0]:
        name, *value = _GAP.split(said.rest, maxsplit=1)
        if not value:
            raise refusal(said.line, f"{said.keyword} {name[:60]} has no value")
        return ((name, value[0]),)
    pairs = []
    for word in found:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise refusal(said.line, f"{said.keyword} {word[:60]!r} is not NAME=VALUE")
        pairs.append((key, text))
    return tuple(pairs)


def _env(said: _Said) -> Env:
    pairs = _pairs(said)
    for name, _ in pairs:
        _variable(said, name)
    return Env(said.line, said.text, pairs)


def _label(said: _Said) -> Label:
    return Label(said.line, said.text, _pairs(said))


def _run(said: _Said) -> Run:
    said.take_flags()
    said.no_heredoc()
    return Run(said.line, said.text, *_program(said))


def _cmd(said: _Said) -> Cmd:
    return Cmd(said.line, said.text, *_program(said, empty=True))


def _entrypoint(said: _Said) -> Entrypoint:
    return Entrypoint(said.line, said.text, *_program(said, empty=True))


def _program(said: _Said, empty: bool = False) -> tuple[tuple[str, ...] | None, str]:
    command, found = said.need_rest(), said.json()
    if found is None:
        return None, command
    if not found and not empty:
        raise refusal(said.line, f"{said.keyword} [] names no program")
    return found, ""


def _copy(said: _Said) -> Copy:
    known = ("from", "chown") if said.keyword == "COPY" else ("chown",)
    said.take_flags(*known)
    said.no_heredoc()
    literal = said.json()
    found = literal if literal is not None else tuple(said.words())
    if len(found) < 2:
        raise refusal(said.line, f"{said.keyword} needs at least a source and a target")
    if said.keyword == "ADD":
        for source in found[:-1]:
            _only_local(said, source)
    return Copy(
        said.line,
        said.text,
        found[:-1],
        found[-1],
        said.flags.get("from"),
        said.flags.get("chown"),
        literal is not None,
    )


def _only_local(said: _Said, source: str) -> None:
    bare = source.strip("'\"")
    if re.match(r"[a-z][a-z0-9+.-]*://|git@", bare, re.IGNORECASE):
        raise refusal(said.line, f"ADD of {bare[:100]!r} is not supported: fetch it in a RUN, or COPY a file")
    if re.search(r"\.(?:tar(?:\.\w+)?|tgz|tbz2?|txz|tzst)$", bare, re.IGNORECASE):
        raise refusal(said.line, f"ADD does not unpack {bare[:100]!r} here: COPY it, and unpack it in a RUN")


def _workdir(said: _Said) -> Workdir:
    return Workdir(said.line, said.text, said.need_rest())


def _user(said: _Said) -> User:
    return User(said.line, said.text, said.need_rest())


def _expose(said: _Said) -> Expose:
    return Expose(said.line, said.text, tuple(said.words()))


def _shell(said: _Said) -> Shell:
    found = said.json()
    if not found:
        raise refusal(said.line, 'SHELL needs the exec form: ["/bin/sh", "-c"]')
    return Shell(said.line, said.text, found)


_KNOWN: dict[str, Callable[[_Said], Instruction]] = {
    "FROM": _from,
    "RUN": _run,
    "COPY": _copy,
    "ADD": _copy,
    "ENV": _env,
    "WORKDIR": _workdir,
    "USER": _user,
    "ARG": _arg,
    "CMD": _cmd,
    "ENTRYPOINT": _entrypoint,
    "LABEL": _label,
    "EXPOSE": _expose,
    "SHELL": _shell,
}
