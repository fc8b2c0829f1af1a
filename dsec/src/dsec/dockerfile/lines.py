"""A Dockerfile's text as logical lines: directives read, comments left out, continued lines joined."""

from __future__ import annotations

import re
from typing import NamedTuple

from .refusals import refusal

MAX_BYTES = 1024 * 1024
MAX_LINES = 10_000

_DIRECTIVE = re.compile(r"#\s*([A-Za-z][A-Za-z0-9_-]*)\s*=(.*)")
_SYNTAX = re.compile(r"(?:docker\.io/)?docker/dockerfile:1(?:\.\d+){0,2}(?:-labs)?")
_BLANK = " \t\r\f\v"


class Line(NamedTuple):
    number: int
    """Of its first physical line; the first of the file is 1."""
    text: str


class Lines(NamedTuple):
    lines: tuple[Line, ...]
    escape: str
    """A backslash, or the backtick that a directive may choose."""


def read_lines(text: str) -> Lines:
    """:raises InvalidArgumentError: too long, or a directive that cannot be honoured."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise refusal(1, f"the file has more than {MAX_BYTES} bytes")
    physical = text.removeprefix("\ufeff").split("\n")
    if len(physical) > MAX_LINES:
        raise refusal(MAX_LINES + 1, f"the file has more than {MAX_LINES} lines")
    escape = _directives(physical)
    ending = re.compile(rf"(?:^|(?<=[^{re.escape(escape)}])){re.escape(escape)}[ \t\r]*$")
    found: list[Line] = []
    parts: list[str] = []
    start = 0
    for number, line in enumerate(physical, 1):
        bare = line.strip(_BLANK)
        if not bare or bare.startswith("#"):
            continue  # within a continued line too
        if not parts:
            start = number
        body, ends = ending.subn("", line.lstrip(_BLANK) if not parts else line.rstrip("\r"))
        parts.append(body)
        if not ends:
            _add(found, start, parts)
            parts = []
    _add(found, start, parts)
    return Lines(tuple(found), escape)


def _add(found: list[Line], start: int, parts: list[str]) -> None:
    text = "".join(parts).strip(_BLANK)
    if text:
        found.append(Line(start, text))


def _directives(physical: list[str]) -> str:
    """The escape that the comments at the top choose; anything else than a directive ends them."""
    escape, seen = "\\", set()
    for number, line in enumerate(physical, 1):
        match = _DIRECTIVE.fullmatch(line.strip(_BLANK))
        if match is None:
            break
        name, value = match[1].lower(), match[2].strip()
        if name not in ("syntax", "escape", "check"):
            break  # a comment that looks like one
        if name in seen:
            raise refusal(number, f"the directive {name} is given twice")
        seen.add(name)
        if name == "syntax" and not _SYNTAX.fullmatch(value):
            raise refusal(number, f"the syntax {value[:100]!r} is not known: this reads docker/dockerfile:1")
        if name == "escape":
            if value not in ("\\", "`"):
                raise refusal(number, f"the escape {value[:20]!r} is neither \\ nor `")
            escape = value
    return escape
