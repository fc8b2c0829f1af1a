"""What lies beside a layer whose data is in a shared store: `remote.json` says which store, `remote.table` is the
layer's table as it came from there."""

from __future__ import annotations

import os

import msgspec

from dsec.store.durable import write_durably
from dsec.store.records import REMOTE_NAME, LayerRecord
from libdsec.protocol.errors import ConflictError, IntegrityError

from .table import LayerTable, decode_table

TABLE_NAME = "remote.table"
SCHEMA = 1


class RemoteFile(msgspec.Struct, frozen=True):
    """remote.json."""

    schema: int
    store: str
    """Its URL, without secrets."""


def not_whole(layer: LayerRecord) -> ConflictError:
    """Why a remote layer cannot be published."""
    return ConflictError(
        f"cannot publish layer {layer.digest}: its data lies in a shared store and is not whole here; fetch the image "
        "first (`dsec image fetch`)",
        digest=layer.digest,
    )


def write_beside(directory: str, store: str, table: bytes) -> dict[str, str]:
    """Both files in `directory`, durable. Returns name → path."""
    contents = {REMOTE_NAME: msgspec.json.encode(RemoteFile(SCHEMA, store)), TABLE_NAME: table}
    paths = {}
    for name, content in contents.items():
        paths[name] = os.path.join(directory, name)
        write_durably(paths[name], content)
    return paths


def read_beside(layer: LayerRecord) -> tuple[RemoteFile, LayerTable]:
    """:raises IntegrityError: they are missing or damaged."""
    try:
        with open(os.path.join(layer.directory, REMOTE_NAME), "rb") as file:
            remote = msgspec.json.decode(file.read(), type=RemoteFile)
        with open(os.path.join(layer.directory, TABLE_NAME), "rb") as file:
            table = file.read()
    except (OSError, msgspec.DecodeError) as error:
        raise IntegrityError(
            f"cannot use layer {layer.digest}: {error}; remove the images that have it, they come again from the store",
            digest=layer.digest,
        ) from error
    if remote.schema != SCHEMA:
        raise IntegrityError(
            f"cannot use layer {layer.digest}: {REMOTE_NAME} is of schema {remote.schema}, this DSec knows {SCHEMA}",
            digest=layer.digest,
        )
    return remote, decode_table(table, layer.digest)
