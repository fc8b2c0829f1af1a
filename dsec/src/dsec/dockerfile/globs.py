"""Globs matched in bounded time, whatever is written in them.

A glob is a list of pieces: one character out of some, a run within a name, a run of anything, or any number of
directories. A regular expression that backtracks takes a power of the path's length for it, with as many powers as
there are runs; so it is used for few runs only, and for more all the ways to share out the path are followed at once:
a set of places in the glob, as the bits of one number, which each character moves on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

MAX_BACKTRACKED: Final = 2
"""Runs that a regular expression may have."""

Kind = Literal["one", "within", "any", "directories"]


class Piece(NamedTuple):
    kind: Kind
    expression: str = ""
    """Of `one`: what matches the character."""


WITHIN: Final = Piece("within")
ANY: Final = Piece("any")
DIRECTORIES: Final = Piece("directories")
_WRITTEN: Final = {WITHIN: "[^/]*", ANY: ".*", DIRECTORIES: "(?:.*/)?"}


class Glob:
    """:raises re.error: an expression of a piece cannot be read."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        merged = _merged(pieces)
        runs = sum(piece.kind != "one" for piece in merged)
        whole = re.compile("".join(_WRITTEN.get(piece, piece.expression) for piece in merged), re.DOTALL)
        self._expression = whole if runs <= MAX_BACKTRACKED else None
        self._places = _Places(merged) if runs > MAX_BACKTRACKED else None

    def matches(self, path: str) -> bool:
        """All of it."""
        if self._expression is not None:
            return self._expression.fullmatch(path) is not None
        return self._places is not None and self._places.match(path)


def _merged(pieces: Sequence[Piece]) -> list[Piece]:
    """Runs that follow one another are one."""
    found: list[Piece] = []
    for piece in pieces:
        before = found[-1] if found else None
        if before == piece and piece.kind != "one":
            continue
        if before == WITHIN and piece == ANY:
            found.pop()
        elif before == ANY and piece == WITHIN:
            continue
        found.append(piece)
    return found


class _Places:
    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._ones: list[tuple[re.Pattern[str], int]] = []
        """What matches at a place, and the place's bit."""
        self._stays = self._stays_in_name = 0
        """Places that any character, or any but `/`, leaves where they are."""
        self._next = self._third = 0
        """Places from which the next one, or the third, is reached by no character."""
        at = 0
        by_expression: dict[str, int] = {}
        for piece in pieces:
            bit = 1 << at
            at += 1
            if piece.kind == "one":
                by_expression[piece.expression] = by_expression.get(piece.expression, 0) | bit
            elif piece.kind == "directories":
                # a place to begin at, one for all up to the last `/`, one for that
                self._next |= bit | bit << 1
                self._third |= bit
                self._stays |= bit << 1
                by_expression["/"] = by_expression.get("/", 0) | bit << 2
                at += 2
            else:
                self._next |= bit
                self._stays |= bit if piece == ANY else 0
                self._stays_in_name |= bit if piece == WITHIN else 0
        self._ones = [(re.compile(expression, re.DOTALL), bits) for expression, bits in by_expression.items()]
        self._end = 1 << at
        self._moved: dict[str, int] = {}

    def match(self, path: str) -> bool:
        places = self._reached(1)
        for character in path:
            stay = self._stays if character == "/" else self._stays | self._stays_in_name
            places = self._reached((places & self._moved_by(character)) << 1 | places & stay)
            if not places:
                return False
        return bool(places & self._end)

    def _moved_by(self, character: str) -> int:
        found = self._moved.get(character)
        if found is None:
            found = sum(bits for one, bits in self._ones if one.fullmatch(character))
            self._moved[character] = found
        return found

    def _reached(self, places: int) -> int:
        while True:
            more = places | (places & self._next) << 1 | (places & self._third) << 3
            if more == places:
                return places
            places = more
