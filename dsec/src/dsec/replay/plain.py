"""Any value of the wire as JSON, and back without loss.

What JSON has is itself. The rest is a map of one key that begins with `$`: `$base64` bytes, `$number` what is no number
in JSON (nan, infinities), `$map` the pairs of a map that JSON could not hold or that would look like one of these,
`$wire` in base64 what is none of all that, as it was encoded.
"""

from __future__ import annotations

import base64
import binascii
import math
from typing import Any

import msgspec

from libdsec.protocol.errors import InvalidArgumentError

_MAX_DEPTH = 64


def to_plain(encoded: bytes | msgspec.Raw) -> Any:
    """Of a value in MessagePack."""
    try:
        return _plain(msgspec.msgpack.decode(encoded), 0)
    except (msgspec.DecodeError, _UnplainError, RecursionError):
        return {"$wire": base64.b64encode(bytes(encoded)).decode()}


def from_plain(value: Any) -> bytes:
    """The value in MessagePack.

    :raises InvalidArgumentError: a marked value that is none.
    """
    if isinstance(value, dict) and value.keys() == {"$wire"}:
        return _bytes(value["$wire"])
    return msgspec.msgpack.encode(_restored(value, 0))


def _plain(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise _UnplainError
    if isinstance(value, bytes):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [_plain(inner, depth + 1) for inner in value]
    if isinstance(value, dict):
        if all(isinstance(name, str) for name in value) and not _looks_marked(value):
            return {name: _plain(inner, depth + 1) for name, inner in value.items()}
        return {"$map": [[_plain(name, depth + 1), _plain(inner, depth + 1)] for name, inner in value.items()]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$number": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise _UnplainError


def _restored(value: Any, depth: int) -> Any:
    if depth > 2 * _MAX_DEPTH:
        raise InvalidArgumentError("cannot read a value: it nests too deep")
    if isinstance(value, list):
        return [_restored(inner, depth + 1) for inner in value]
    if not isinstance(value, dict):
        return value
    if not _looks_marked(value):
        return {name: _restored(inner, depth + 1) for name, inner in value.items()}
    ((mark, inner),) = value.items()
    if mark == "$base64":
        return _bytes(inner)
    if mark == "$number" and inner in ("nan", "inf", "-inf"):
        return float(inner)
    if mark == "$map" and isinstance(inner, list) and all(isinstance(p, list) and len(p) == 2 for p in inner):
        return {_key(_restored(name, depth + 1)): _restored(what, depth + 1) for name, what in inner}
    raise InvalidArgumentError(f"cannot read a value marked {mark[:40]!r}: it is not one")


def _looks_marked(value: dict[Any, Any]) -> bool:
    return len(value) == 1 and all(isinstance(name, str) and name.startswith("$") for name in value)


def _key(value: Any) -> Any:
    """Lists were tuples where they are keys."""
    if isinstance(value, list):
        return tuple(_key(inner) for inner in value)
    if isinstance(value, dict):
        raise InvalidArgumentError("cannot read a map: a key is a map")
    return value


def _bytes(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise InvalidArgumentError("cannot read bytes: they are not base64") from None


class _UnplainError(Exception):
    """JSON has no form for it."""
