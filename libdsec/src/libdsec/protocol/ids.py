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


def _draw(count: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(count))


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
