"""Identifiers.

A sandbox id is the prefix of its edge (EDGE_PREFIX_LENGTH characters, drawn once when the node's state is made and
kept with it) followed by random characters, so that an id alone says where a call must go. All are lower-case letters
and digits because an id becomes a host name.
"""

from __future__ import annotations

import re
import secrets

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
EDGE_PREFIX_LENGTH = 8
SANDBOX_ID_LENGTH = 24

_SANDBOX_ID = re.compile(rf"[a-z0-9]{{{SANDBOX_ID_LENGTH}}}")


# a random byte becomes a character by its rest; those that would favour the first characters are left out
_FAIR = 256 - 256 % len(ALPHABET)
_TABLE = bytes(ord(ALPHABET[byte % len(ALPHABET)]) for byte in range(256))
_UNFAIR = bytes(range(_FAIR, 256))


def _draw(count: int) -> str:
    drawn = b""
    while len(drawn) < count:
        drawn += secrets.token_bytes(count + 8).translate(_TABLE, _UNFAIR)
    return drawn[:count].decode("ascii")


def new_edge_prefix() -> str:
    """A fresh edge prefix; starts with a letter, since a host name label may not be all digits."""
    return secrets.choice(ALPHABET[:26]) + _draw(EDGE_PREFIX_LENGTH - 1)


def new_sandbox_id(edge_prefix: str) -> str:
    return edge_prefix + _draw(SANDBOX_ID_LENGTH - EDGE_PREFIX_LENGTH)


def is_sandbox_id(text: str) -> bool:
    return _SANDBOX_ID.fullmatch(text) is not None


def edge_of(sandbox_id: str) -> str:
    """The prefix of the edge that owns the sandbox."""
    return sandbox_id[:EDGE_PREFIX_LENGTH]


def new_token() -> str:
    """A random token for idempotency keys and epochs."""
    return secrets.token_hex(12)
