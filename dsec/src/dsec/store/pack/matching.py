"""Which paths a list of rules leaves out.

A pattern is matched against a whole path without its first `/`, name by name: within a name `*` is anything and `?` one
character (one byte, where the name is no UTF-8); `**` alone is any number of names, none too, and at the end of a
pattern at least one. What a rule says of a directory holds for all below it. The last rule that says something decides.

All rules together are one automaton over names, whose sets of states are made as they are met. A step costs one look-up
and, for each part with a `*` or `?` that is awaited there, a match in time proportional to the product of two lengths:
no pattern can make it take longer.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Final

from libdsec.protocol.errors import InvalidArgumentError
from libdsec.protocol.images import ScrubRule

MAX_RULES: Final = 1000
"""Of a caller."""
MAX_PART: Final = 255
"""Characters of one name of a pattern: a longer one matches nothing."""
MAX_PARTS: Final = 64
"""Names of a pattern."""
MAX_ALL_PARTS: Final = 4000
"""Names of all patterns together."""
MAX_WHY: Final = 200

_ANY: Final = "**"
_MAX_STATES: Final = 50_000
"""In the sets that are kept, some 10 MB. The platform's rules have 100 and more in each, and /usr with /var asks for a
dozen sets; names or rules that are made for it ask for thousands."""

_States = frozenset[tuple[int, int]]
"""(rule, number of its parts that are behind)."""


def check_rules(rules: Sequence[ScrubRule]) -> None:
    """:raises InvalidArgumentError: too many, or a pattern that nothing can match; says which."""
    parts = sum(rule.pattern.count("/") + 1 for rule in rules)
    if len(rules) > MAX_RULES or parts > MAX_ALL_PARTS:
        raise InvalidArgumentError(
            f"cannot use {len(rules)} scrub rules with {parts} names: at most {MAX_RULES} with {MAX_ALL_PARTS}",
            field="rules",
        )
    for rule in rules:
        names = rule.pattern.split("/")
        if len(names) > MAX_PARTS or max(map(len, names)) > MAX_PART:
            raise _unusable(rule, f"it has more than {MAX_PARTS} names, or one of more than {MAX_PART} characters")
        if "\0" in rule.pattern or any(name in ("", ".", "..") for name in names):
            raise _unusable(rule, "it must be a path without a `/` at its beginning or end, and without `.` and `..`")
        if len(rule.why) > MAX_WHY:
            raise _unusable(rule, f"its reason has more than {MAX_WHY} characters")


def _unusable(rule: ScrubRule, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"cannot use scrub rule {rule.pattern[:100]!r}: {why}", field="rules")


class Place:
    """A path, and what the rules say of it."""

    __slots__ = ("_at", "_decided", "_matcher")

    def __init__(self, matcher: Matcher, at: _Set, decided: int) -> None:
        self._matcher = matcher
        self._at = at
        self._decided = decided

    @property
    def left_out(self) -> ScrubRule | None:
        """The rule by which it is left out."""
        rule = self._matcher.rules[self._decided] if self._decided >= 0 else None
        return None if rule is None or rule.keep else rule

    def below(self, name: bytes) -> Place:
        """What has this name in the directory here."""
        at = self._matcher.step(self._at, name.decode("utf-8", "surrogateescape"))
        return Place(self._matcher, at, max(self._decided, at.last))


class Matcher:
    """Rules that were checked. Several threads may use it: what they make at once is equal."""

    def __init__(self, rules: Sequence[ScrubRule]) -> None:
        self.rules = tuple(rules)
        self._parts = [tuple(rule.pattern.split("/")) for rule in rules]
        self._sets: dict[_States, _Set] = {}
        self._kept = 0
        """States in them."""
        self.root = Place(self, self._set({(number, 0) for number in range(len(rules))}), -1)

    def step(self, at: _Set, name: str) -> _Set:
        """From a directory to a name in it."""
        named = at.plain.get(name, ())
        matched = [
            state
            for glob, state in at.globs
            if name.startswith(glob.head) and name.endswith(glob.tail) and glob.matches(name)
        ]
        if not matched and not named:
            if at.other is None:
                at.other = self._set(set(at.stay))
            return at.other
        return self._set({*at.stay, *named, *matched})

    def _set(self, states: set[tuple[int, int]]) -> _Set:
        pending = list(states)
        while pending:  # a `**` that something follows may be no name at all
            rule, at = pending.pop()
            parts = self._parts[rule]
            following = (rule, at + 1)
            if at + 1 < len(parts) and parts[at] == _ANY and following not in states:
                states.add(following)
                pending.append(following)
        key = frozenset(states)
        found = self._sets.get(key)
        if found is None:
            self._kept += len(key)
            if self._kept > _MAX_STATES:
                self._sets.clear()
                self._kept = len(key)
            found = self._sets[key] = self._made(key)
        return found

    def _made(self, states: _States) -> _Set:
        stay: set[tuple[int, int]] = set()
        plain: dict[str, list[tuple[int, int]]] = {}
        globs: list[tuple[_Glob, tuple[int, int]]] = []
        last = -1
        for rule, at in states:
            parts = self._parts[rule]
            if at == len(parts):
                last = max(last, rule)
                continue
            part, following = parts[at], (rule, at + 1)
            if part == _ANY:
                stay.add((rule, at))
                if at + 1 == len(parts):
                    stay.add(following)
            elif "*" in part or "?" in part:
                globs.append((_glob(part), following))
            else:
                plain.setdefault(part, []).append(following)
        return _Set(frozenset(stay), plain, globs, last)


@functools.lru_cache(maxsize=4)
def matcher_of(rules: tuple[ScrubRule, ...]) -> Matcher:
    """With the sets that earlier packs by the same rules have made."""
    return Matcher(rules)


class _Set:
    """Where the rules stand at a path, prepared for the next name."""

    __slots__ = ("globs", "last", "other", "plain", "stay")

    def __init__(
        self,
        stay: _States,
        plain: dict[str, list[tuple[int, int]]],
        globs: list[tuple[_Glob, tuple[int, int]]],
        last: int,
    ) -> None:
        self.stay = stay
        """Whatever the name is."""
        self.plain = plain
        """By name, beside `stay`."""
        self.globs = globs
        self.last = last
        """The last rule whose pattern ends here; -1 is none."""
        self.other: _Set | None = None
        """After a name that no rule awaits."""


class _Glob:
    """One part with `*` or `?`: what lies between stars is looked for from left to right, each time where it comes
    first."""

    def __init__(self, part: str) -> None:
        self.head, *_, self.tail = re.split(r"[*?]", part)
        """What every name that matches begins and ends with: most others are told by that alone."""
        pieces = re.split(r"\*+", part)
        self._pieces = [re.compile(re.escape(piece).replace(r"\?", "."), re.DOTALL) for piece in pieces]
        self._lengths = [len(piece) for piece in pieces]

    def matches(self, name: str) -> bool:
        first, *between = self._pieces
        if not between:
            return first.fullmatch(name) is not None
        end = len(name) - self._lengths[-1]
        if end < self._lengths[0] or first.match(name) is None:
            return False
        at = self._lengths[0]
        for piece in between[:-1]:
            found = piece.search(name, at, end)
            if found is None:
                return False
            at = found.end()
        return between[-1].match(name, end) is not None


@functools.lru_cache(maxsize=1024)
def _glob(part: str) -> _Glob:
    return _Glob(part)
