"""Names with wildcards: sources of COPY, and the lines of a .dockerignore."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import NamedTuple

from libdsec.protocol.errors import InvalidArgumentError

MAX_PATTERNS = 10_000


def has_wildcard(text: str) -> bool:
    return any(character in text for character in "*?[\\")


def compiled(pattern: str, *, deep: bool) -> re.Pattern[str]:
    """`*` is anything within a name, `?` one character, `[a-z]` one of these, a backslash takes the meaning off what
    follows; with `deep`, `**` is any number of directories.

    :raises InvalidArgumentError: a class that is not closed, a backslash at the end.
    """
    found = ""
    at = 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == "*" and pattern[at : at + 1] == "*" and deep:
            at += 1
            if pattern[at : at + 1] == "/":
                at += 1
                # two say no more than one, and could share out a path in many ways
                found += "(?:.*/)?" * (not found.endswith("(?:.*/)?"))
            else:
                found += ".*"
        elif character == "*":
            found += "[^/]*" * (not found.endswith("[^/]*"))
        elif character == "?":
            found += "[^/]"
        elif character == "[":
            text, at = _character_class(pattern, at)
            found += text
        elif character == "\\":
            if at == len(pattern):
                raise _wrong(pattern, "a backslash ends it")
            found += re.escape(pattern[at])
            at += 1
        else:
            found += re.escape(character)
    try:
        return re.compile(found, re.DOTALL)
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
    pattern: re.Pattern[str]
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
            if rule.keeps == out and _matches(rule.pattern, above):
                out = not rule.keeps
        return out


def _matches(pattern: re.Pattern[str], paths: Sequence[str]) -> bool:
    return any(pattern.fullmatch(path) is not None for path in paths)
