"""Scrub rules: what a pattern means, which rule decides, and that none takes long."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.store.pack import matching
from dsec.store.pack.matching import MAX_ALL_PARTS, MAX_PARTS, MAX_RULES, Matcher, check_rules
from dsec.store.pack.rules import RULES, rules_table
from libdsec.protocol.errors import InvalidArgumentError
from libdsec.protocol.images import ScrubRule


def left_out(rules: list[str], path: str) -> str | None:
    """The pattern of the rule by which `path` is left out; one that begins with `!` keeps."""
    made = [ScrubRule(rule.removeprefix("!"), keep=rule.startswith("!")) for rule in rules]
    check_rules(made)
    place = Matcher(made).root
    for name in path.encode("utf-8", "surrogateescape").split(b"/"):
        place = place.below(name)
    return None if place.left_out is None else place.left_out.pattern


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a", ["a", "a/b", "a/b/c"], ["b", "aa", "b/a"]),
        ("tmp/*", ["tmp/a", "tmp/a/b", "tmp/.x"], ["tmp", "var/tmp/a"]),
        ("tmp/**", ["tmp/a", "tmp/a/b"], ["tmp"]),
        ("**/x", ["x", "a/x", "a/b/x/c"], ["xx", "a/xb"]),
        ("a/**/b", ["a/b", "a/c/b", "a/c/d/b/e"], ["b", "a", "c/a/b"]),
        ("**/a/**/b", ["a/b", "x/a/y/b"], ["b/a"]),
        ("*.py?", ["x.pyc", ".pyo"], ["x.py", "x.pycc"]),
        ("?", ["a", "é", "\udcff"], ["ab"]),
        ("a*b*c", ["abc", "axxbyyc", "abbcc"], ["ab", "acb", "bc", "ac"]),
        ("a*a", ["aa", "aba"], ["a", "ab"]),
        ("*", ["a", "b/c"], []),
        ("[a]", ["[a]"], ["a"]),
    ],
)
def test_what_a_pattern_means(pattern: str, yes: list[str], no: list[str]) -> None:
    for path in yes:
        assert left_out([pattern], path) == pattern, path
    for path in no:
        assert left_out([pattern], path) is None, path


def test_the_last_rule_decides_for_a_path_and_all_below_it() -> None:
    rules = ["tmp/*", "!tmp/keep", "tmp/keep/not", "!tmp/keep/not/but"]
    assert left_out(rules, "tmp/other") == "tmp/*"
    assert left_out(rules, "tmp/keep") is None
    assert left_out(rules, "tmp/keep/a/b") is None
    assert left_out(rules, "tmp/keep/not/a") == "tmp/keep/not"
    assert left_out(rules, "tmp/keep/not/but/a") is None
    assert left_out(["!a/b", "a"], "a/b") == "a"


@pytest.mark.parametrize(
    "pattern", ["", "/a", "a/", "a//b", "./a", "a/../b", "a\0b", "x" * 256, "/".join("a" * (MAX_PARTS + 1))]
)
def test_a_pattern_that_can_match_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_rules([ScrubRule(pattern)])
    assert caught.value.details["field"] == "rules"


def test_there_may_not_be_too_many() -> None:
    check_rules([ScrubRule("a")] * MAX_RULES)
    for rules in ([ScrubRule("a")] * (MAX_RULES + 1), [ScrubRule("/".join("a" * 50))] * (MAX_ALL_PARTS // 50 + 1)):
        with pytest.raises(InvalidArgumentError):
            check_rules(rules)
    with pytest.raises(InvalidArgumentError):
        check_rules([ScrubRule("a", "w" * 201)])


def test_no_pattern_takes_long() -> None:
    """Each would take for ever by backtracking; the run of the test is bounded as a whole."""
    check_rules(rules := [ScrubRule("/".join(["**", "*a" * 120] * 31)), *[ScrubRule("*?" * 100 + "b")] * 50])
    matcher = Matcher(rules)
    place = matcher.root
    for _ in range(200):
        place = place.below(b"a" * 255)
    assert matcher.root.below(b"a" * 255).left_out is None


def test_names_made_for_it_cost_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of the rules' own names, in any order; what the rules say stays the same when sets are made anew."""
    monkeypatch.setattr(matching, "_MAX_STATES", 2000)
    matcher = Matcher(RULES)
    names = sorted({part.encode() for rule in RULES for part in rule.pattern.split("/")})
    choose = random.Random(7).choices
    made: set[frozenset[tuple[int, int]]] = set()
    for _ in range(100):
        path = choose(names, k=5)
        place, fresh = matcher.root, Matcher(RULES).root
        for name in path:
            place, fresh = place.below(name), fresh.below(name)
            assert place.left_out == fresh.left_out
        made |= set(matcher._sets)
        assert sum(map(len, matcher._sets)) <= 2000
    assert sum(map(len, made)) > 4000


NAMES = st.text("ab*?", min_size=1, max_size=5).filter(lambda name: "**" not in name)
PARTS = st.lists(st.one_of(NAMES, st.just("**")), min_size=1, max_size=4)
PATHS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=5)


def expected(parts: list[str], path: list[str]) -> bool:
    """By a regular expression over the whole path, or of one above it."""
    pattern = ""
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == "**":
            pattern += r"[^/]+(/[^/]+)*/" if last else r"([^/]+/)*"
        else:
            pattern += f"{_name(part)}/"
    return any(re.fullmatch(pattern, "/".join(path[:length]) + "/") for length in range(1, len(path) + 1))


def _name(part: str) -> str:
    return "".join({"*": "[^/]*", "?": "[^/]"}.get(character, re.escape(character)) for character in part)


@given(PARTS, PATHS)
def test_as_a_regular_expression_would(parts: list[str], path: list[str]) -> None:
    assert (left_out(["/".join(parts)], "/".join(path)) is not None) == expected(parts, path)


def test_the_platforms_rules_are_sound() -> None:
    check_rules(RULES)
    assert all(rule.why for rule in RULES)
    assert len({rule.pattern for rule in RULES}) == len(RULES)
    assert all(f"`{rule.pattern}`" in rules_table() for rule in RULES)


@pytest.mark.parametrize(
    ("path", "stays"),
    [
        ("root/.bash_history", False),
        ("tmp/x", False),
        ("tmp", True),
        ("home/a/.cache/pip/http/0", False),
        ("home/a/.cache/huggingface/hub/model.bin", True),
        ("root/.cache/huggingface/token", False),
        ("root/.cache/pypoetry/virtualenvs/x/bin/python", True),
        ("root/.cargo/registry/src/x", True),
        ("srv/app/__pycache__/a.pyc", False),
        ("usr/lib/python3.11/json/__pycache__/a.pyc", True),
        ("srv/.venv/lib/python3.11/site-packages/x/__pycache__/a.pyc", True),
        ("var/log/nginx", True),
        ("var/log/nginx/access.log", False),
        ("var/log/wtmp", False),
        ("var/lib/apt/lists/deb_x", False),
        ("root/.ssh/id_ed25519", False),
        ("root/.ssh/config", True),
        ("srv/app/.npmrc", True),
        ("root/.npmrc", False),
        ("srv/app/.yarn/cache/x.zip", True),
        ("srv/app/core/models.py", True),
        ("core", True),
        ("etc/machine-id", False),
        ("srv/app/.main.py.swp", False),
        ("srv/app/main.py~", False),
    ],
)
def test_what_the_platforms_rules_say(path: str, stays: bool) -> None:
    place = Matcher(RULES).root
    for name in path.encode().split(b"/"):
        place = place.below(name)
    assert (place.left_out is None) == stays


def test_the_page_has_the_rules() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "packing.md"
    assert rules_table() in page.read_text(), "put rules_table() into docs/packing.md"
