"""Tables of rooms and their migration."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from libdsec.protocol.errors import UnavailableError

LAYOUT = 1
"""`user_version` of the file: how versions of schemas are kept in it."""


class Schema(NamedTuple):
    """What a room keeps."""

    name: str
    steps: tuple[tuple[str, ...], ...]
    """Step i, statements, takes version i to i + 1. Steps are only added."""


def migrate(database: sqlite3.Connection, path: str, schemas: Iterable[Schema]) -> None:
    """Bring every schema to its newest version, in one transaction. When all are, nothing is written: a node whose
    disk is full must still start.

    :raises UnavailableError: the file was written by a newer version; nothing has changed.
    """
    versions = _versions(database, path)
    behind = []
    for schema in schemas:
        version = versions.get(schema.name, 0)
        if version > len(schema.steps):
            raise _newer(path, f"version {version} of {schema.name}, this one knows {len(schema.steps)}")
        if version < len(schema.steps):
            behind.append((schema, version))
    if not behind and versions:
        return
    database.execute("BEGIN IMMEDIATE")
    try:
        database.execute("CREATE TABLE IF NOT EXISTS schemas (name TEXT PRIMARY KEY, version INTEGER) WITHOUT ROWID")
        for schema, version in behind:
            for statements in schema.steps[version:]:
                for statement in statements:
                    database.execute(statement)
            database.execute("INSERT OR REPLACE INTO schemas VALUES (?, ?)", (schema.name, len(schema.steps)))
        database.execute(f"PRAGMA user_version = {LAYOUT}")
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _versions(database: sqlite3.Connection, path: str) -> dict[str, int]:
    (layout,) = database.execute("PRAGMA user_version").fetchone()
    if layout > LAYOUT:
        raise _newer(path, f"layout {layout}, this one knows {LAYOUT}")
    if layout == 0:
        return {}
    return dict(database.execute("SELECT name, version FROM schemas"))


def _newer(path: str, what: str) -> UnavailableError:
    return UnavailableError(
        f"cannot open the journal {path}: a newer DSec wrote it ({what}); start that one, or one that is newer still",
        path=path,
    )
