"""Names with wildcards: sources of COPY, and the lines of a .dockerignore."""

from __future__ import annotations

import posixpath
import re
from typing import NamedTuple

from libdsec.protocol.errors import InvalidArgumentError

from .globs import ANY, DIRECTORIES, WITHIN, Glob, Piece

MAX_PATTERNS = 10_000


def has_wildcard(text: str) -> bool:
    return any(character in text for character in "*?[\\")


def compiled(pattern: str, *, deep: bool) -> Glob:
    """`*` is anything within a name, `?` one character, `[a-z]` one of these, a backslash takes the meaning off what
    follows; with `deep`, `**` is any number of directories.

    :raises InvalidArgumentError: a class that is not closed, a backslash at the end.
    """
    found: list[Piece] = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == "*" and pattern[at : at + 1] == "*" and deep:
            at += 1
            if pattern[at : at + 1] == "/":
                at += 1
                found.append(DIRECTORIES)
            else:
                found.append(ANY)
        elif character == "*":
            found.append(WITHIN)
        elif character == "?":
            found.append(Piece("one", "[^/]"))
        elif character == "[":
            text, at = _character_class(pattern, at)
            found.append(Piece("one", text))
        elif character == "\\":
            if at == len(pattern):
                raise _wrong(pattern, "a backslash ends it")
            found.append(Piece("one", re.escape(pattern[at])))
            at += 1
        else:
            found.append(Piece("one", re.escape(character)))
    try:
        return Glob(found)
    except re.error as error:
        raise _wrong(pattern, str(error)) from None


def _character_class(pattern: str, at: int) -> tuple[str, int]:
    """What stands for the class whose `[` is passed already, and where its end is passed."""
    negated = pattern[at : at + 1] in ("^", "!")
    at += negated
    inside = ""
    while at < len(pattern) and pattern[at] != "]":
        first, at = _class_member(pattern, at)
        inside += re.escape(first)
        if pattern[at : at + 1] == "-" and pattern[at + 1 : at + 2] != "]":
            last, at = _class_member(pattern, at + 1)
            inside += f"-{re.escape(last)}"
    if at >= len(pattern) or not inside:
        raise _wrong(pattern, "its [ is not closed, or has nothing in it")
    return f"(?!/)[{'^' * negated}{inside}]", at + 1


def _class_member(pattern: str, at: int) -> tuple[str, int]:
    """One character, and where it is passed; nothing at the end."""
    at += pattern[at : at + 1] == "\\"
    return pattern[at : at + 1], at + 1


def _wrong(pattern: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"cannot use the pattern {pattern[:200]!r}: {why}", field="pattern")


class _Rule(NamedTuple):
    pattern: Glob
    keeps: bool


class Ignore:
    """What a .dockerignore leaves out: the last line that matches a path, or a directory above it, decides."""

    def __init__(self, text: str = "") -> None:
        """:raises InvalidArgumentError: a pattern that cannot be read, or too many."""
        self._rules: list[_Rule] = []
        for line in text.removeprefix("\ufeff").splitlines():
            bare = line.strip()
            if not bare or line.startswith("#"):
                continue
            keeps = bare.startswith("!")
            path = posixpath.normpath(bare.removeprefix("!").strip() or ".").strip("/")
            if path == ".":
                continue  # the directory itself is never left out
            if len(self._rules) >= MAX_PATTERNS:
                raise InvalidArgumentError(f"cannot use .dockerignore: more than {MAX_PATTERNS} lines", field="pattern")
            self._rules.append(_Rule(compiled(path, deep=True), keeps))
        self.keeps_any = any(rule.keeps for rule in self._rules)
        """Something below what is left out may be kept after all."""

    def leaves_out(self, path: str) -> bool:
        names = path.split("/")
        above = ["/".join(names[:count]) for count in range(1, len(names) + 1)]
        out = False
        for rule in self._rules:
            if rule.keeps == out and any(map(rule.pattern.matches, above)):
                out = not rule.keeps
        return out
