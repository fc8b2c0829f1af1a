"""Words of a line: quotes, escapes, and variables, as a shell has them, but for what only a shell can do."""

from __future__ import annotations

from collections.abc import Mapping

from .refusals import refusal

MAX_VALUE = 128 * 1024
"""Characters that the variables of one word may come to: more no program can be given anyway."""
_MAX_DEPTH = 16

_FIRST = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_NAME = _FIRST | frozenset("0123456789")


def split(line: int, text: str, escape: str) -> list[str]:
    """Words as they are written, quotes and escapes still in them.

    :raises InvalidArgumentError: a quote that is not closed.
    """
    words: list[str] = []
    current: list[str] = []  # pieces: a word may be as long as the file
    quote = ""
    begun = False
    at = 0
    while at < len(text):
        character = text[at]
        if character == escape and quote != "'" and at + 1 < len(text):
            current.append(text[at : at + 2])
            begun = True
            at += 2
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in " \t":
            if begun:
                words.append("".join(current))
            current, begun = [], False
            at += 1
            continue
        current.append(character)
        begun = True
        at += 1
    if quote:
        raise refusal(line, f"the quote {quote} is not closed")
    return [*words, "".join(current)] if begun else words


def expand(line: int, text: str, variables: Mapping[str, str], escape: str) -> str:
    """What a word comes to: variables put in, quotes and escapes taken off. What is not set is empty.

    :raises InvalidArgumentError: an open quote or brace, a form that is not known, `${NAME:?why}` of nothing, a result
        that is too long.
    """
    return _Expansion(line, text, variables, escape).whole()


class _Expansion:
    def __init__(self, line: int, text: str, variables: Mapping[str, str], escape: str) -> None:
        self._line = line
        self._text = text
        self._variables = variables
        self._escape = escape
        self._at = 0
        self._depth = 0
        self._put_in = 0

    def whole(self) -> str:
        return self._until("")

    def _until(self, end: str) -> str:
        """Up to the character `end`, which is passed over, or to the end of the text."""
        found: list[str] = []
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == end:
                self._at += 1
                return "".join(found)
            found.append(self._piece(character))
        if end:
            raise refusal(self._line, f"{end!r} is missing at the end")
        return "".join(found)

    def _piece(self, character: str) -> str:
        self._at += 1
        if character == "'":
            return self._single()
        if character == '"':
            return self._double()
        if character == self._escape:
            return self._escaped()
        if character == "$":
            return self._variable()
        return character

    def _single(self) -> str:
        close = self._text.find("'", self._at)
        if close < 0:
            raise refusal(self._line, "the quote ' is not closed")
        inside, self._at = self._text[self._at : close], close + 1
        return inside

    def _double(self) -> str:
        found: list[str] = []
        while self._at < len(self._text):
            character = self._text[self._at]
            self._at += 1
            if character == '"':
                return "".join(found)
            if character == "$":
                found.append(self._variable())
            elif character == self._escape and self._text[self._at : self._at + 1] in ('"', "$", self._escape):
                found.append(self._escaped())
            else:
                found.append(character)
        raise refusal(self._line, 'the quote " is not closed')

    def _escaped(self) -> str:
        character = self._text[self._at : self._at + 1]
        self._at += 1
        return character

    def _variable(self) -> str:
        following = self._text[self._at : self._at + 1]
        if following == "{":
            self._at += 1
            return self._braces()
        if following not in _FIRST or not following:
            return "$"
        return self._value(self._name()) or ""

    def _value(self, name: str) -> str | None:
        value = self._variables.get(name)
        self._put_in += len(value or "")
        if self._put_in > MAX_VALUE:
            raise refusal(self._line, f"the variables of a word come to more than {MAX_VALUE} characters")
        return value

    def _name(self) -> str:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] in _NAME:
            self._at += 1
        return self._text[start : self._at]

    def _braces(self) -> str:
        name = self._name()
        if not name or name[0] not in _FIRST:
            raise refusal(self._line, "${ is not followed by the name of a variable")
        if self._text[self._at : self._at + 1] == "}":
            self._at += 1
            return self._value(name) or ""
        colon = self._text[self._at : self._at + 1] == ":"
        self._at += colon
        operator = self._text[self._at : self._at + 1]
        if not operator or operator not in "-+?":
            raise refusal(self._line, f"${{{name} goes on with {operator!r}: known are }}, :-, :+, :?, -, + and ?")
        self._at += 1
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise refusal(self._line, f"variables are nested more than {_MAX_DEPTH} deep")
        word = self._until("}")
        self._depth -= 1
        value = self._value(name)
        return self._chosen(name, operator, value, value is not None and (not colon or value != ""), word)

    def _chosen(self, name: str, operator: str, value: str | None, there: bool, word: str) -> str:
        if operator == "+":
            return word if there else ""
        if there and value is not None:
            return value
        if operator == "?":
            raise refusal(self._line, f"{name} is not set: {word or 'the file asks for it'}")
        return word
