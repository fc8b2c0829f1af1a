"""Globs against what a regular expression says, and globs that a regular expression would not come to an end with."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.dockerfile.globs import ANY, DIRECTORIES, WITHIN, Glob, Piece
from dsec.dockerfile.patterns import Ignore, compiled

_WRITTEN = {WITHIN: "[^/]*", ANY: ".*", DIRECTORIES: "(?:.*/)?"}
_PIECES = st.sampled_from([*_WRITTEN, *(Piece("one", each) for each in ("a", "b", "/", "[^/]", "(?!/)[^b]"))])


@given(st.lists(_PIECES, max_size=9), st.text(alphabet="ab/\n", max_size=9))
def test_any_glob_matches_what_its_expression_does(pieces: list[Piece], path: str) -> None:
    expression = "".join(_WRITTEN.get(piece, piece.expression) for piece in pieces)
    expected = re.fullmatch(expression, path, re.DOTALL) is not None
    assert Glob(pieces).matches(path) is expected


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*a" * 20 + "*b", "a" * 255, False),
        ("*a" * 20 + "*", "a" * 255, True),
        ("**/a" * 15 + "/b", "/".join("a" * 100), False),
        ("**/a" * 15 + "/b", "/".join("a" * 100) + "/b", True),
        ("**a" * 15 + "b", "a" * 255, False),
        ("[ab]*?*" * 15 + "c", "ab" * 120, False),
    ],
)
def test_no_glob_takes_for_ever(pattern: str, path: str, matches: bool) -> None:
    assert compiled(pattern, deep=True).matches(path) is matches
    assert Ignore(pattern).leaves_out(path) is matches
