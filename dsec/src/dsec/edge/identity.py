"""Who this edge is: a prefix drawn once and kept with the node's state."""

from __future__ import annotations

import os

import msgspec

from libdsec.protocol.errors import UnavailableError
from libdsec.protocol.ids import new_edge_prefix

SCHEMA = 1


class Identity(msgspec.Struct, frozen=True):
    schema: int
    edge_prefix: str


def load_identity(state_dir: str) -> Identity:
    """Read it, or draw it at the first start.

    :raises UnavailableError: it cannot be read or kept, or was written by a newer version.
    """
    path = os.path.join(state_dir, "edge.json")
    try:
        with open(path, "rb") as file:
            identity = msgspec.json.decode(file.read(), type=Identity)
    except FileNotFoundError:
        return _draw(path)
    except (OSError, msgspec.DecodeError) as error:
        raise UnavailableError(f"cannot read the node's identity {path}: {error}") from None
    if identity.schema > SCHEMA:
        raise UnavailableError(f"cannot use {path}: its schema {identity.schema} is newer than this version's {SCHEMA}")
    return identity


def _draw(path: str) -> Identity:
    identity = Identity(SCHEMA, new_edge_prefix())
    partial = f"{path}.partial"
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, msgspec.json.encode(identity))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(partial, path)
    except OSError as error:
        raise UnavailableError(f"cannot keep the node's identity {path}: {error.strerror}") from None
    return identity
