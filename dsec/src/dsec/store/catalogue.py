"""The catalogue: which image a name points at, which layers it has. SQLite, one file, one writer process.

A name is published once. Removing an image tells which layers no image has any more; their files are the caller's
(`local.LocalStore`). Reads come from memory while the database has not changed.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from libdsec.protocol.environment import ImageConfig, parse_ref
from libdsec.protocol.errors import (
    AlreadyExistsError,
    CapacityError,
    ImageNotFoundError,
    InternalError,
    InvalidArgumentError,
)

from . import history
from .records import DATA_NAME, METADATA_NAME, ImageRecord, LayerRecord, config_fault

_FIRST = """
CREATE TABLE layers (
    digest TEXT PRIMARY KEY, metadata_bytes INTEGER NOT NULL, data_bytes INTEGER NOT NULL, files INTEGER NOT NULL,
    metadata_digest TEXT NOT NULL
) WITHOUT ROWID, STRICT;
CREATE TABLE images (
    ref TEXT PRIMARY KEY, kind TEXT NOT NULL, config BLOB NOT NULL, created_at REAL NOT NULL, parent TEXT
) WITHOUT ROWID, STRICT;
CREATE TABLE image_layers (
    ref TEXT NOT NULL REFERENCES images ON DELETE CASCADE, position INTEGER NOT NULL,
    digest TEXT NOT NULL REFERENCES layers, PRIMARY KEY (ref, position)
) WITHOUT ROWID, STRICT;
CREATE INDEX image_layers_by_digest ON image_layers (digest);
"""

_SHARED = """
CREATE TABLE store_packs (
    id INTEGER PRIMARY KEY, store TEXT NOT NULL, digest BLOB NOT NULL, bytes INTEGER NOT NULL, UNIQUE (store, digest)
) STRICT;
CREATE TABLE store_chunks (
    digest BLOB NOT NULL, pack INTEGER NOT NULL REFERENCES store_packs ON DELETE CASCADE, start INTEGER NOT NULL,
    stored INTEGER NOT NULL, encoding INTEGER NOT NULL, PRIMARY KEY (digest, pack)
) WITHOUT ROWID, STRICT;
CREATE INDEX store_chunks_by_pack ON store_chunks (pack);
CREATE TABLE store_images (
    ref TEXT NOT NULL REFERENCES images ON DELETE CASCADE, store TEXT NOT NULL, PRIMARY KEY (ref, store)
) WITHOUT ROWID, STRICT;
CREATE TABLE layer_uses (digest TEXT PRIMARY KEY, used_at REAL NOT NULL) WITHOUT ROWID, STRICT;
CREATE TABLE pins (ref TEXT PRIMARY KEY REFERENCES images ON DELETE CASCADE, pinned_at REAL NOT NULL)
WITHOUT ROWID, STRICT;
"""
"""What is known of shared stores (`remote.known`), and what garbage collection goes by (`uses`)."""

_OCI = """
CREATE TABLE oci_layers (
    diff_ids BLOB NOT NULL, below BLOB NOT NULL, digest TEXT NOT NULL REFERENCES layers ON DELETE CASCADE,
    PRIMARY KEY (diff_ids, below)
) WITHOUT ROWID, STRICT;
CREATE INDEX oci_layers_by_digest ON oci_layers (digest);
"""
"""Which layers were made of which OCI layers (`oci.known`)."""

_PACKED = """
CREATE TABLE packed (
    ref TEXT PRIMARY KEY REFERENCES images ON DELETE CASCADE, maker TEXT NOT NULL, answer BLOB NOT NULL
) WITHOUT ROWID, STRICT
"""
"""Which step of a command log packed an image, and its answer (`pack.record`)."""

_ORIGINS = """
CREATE TABLE oci_read (
    blob TEXT NOT NULL, diff_id TEXT NOT NULL, digest TEXT NOT NULL REFERENCES layers ON DELETE CASCADE,
    PRIMARY KEY (blob, diff_id, digest)
) WITHOUT ROWID, STRICT;
CREATE INDEX oci_read_by_digest ON oci_read (digest);
CREATE TABLE image_origins (
    ref TEXT NOT NULL REFERENCES images ON DELETE CASCADE, digest TEXT NOT NULL, host TEXT NOT NULL, name TEXT NOT NULL,
    below BLOB NOT NULL, blobs BLOB NOT NULL, PRIMARY KEY (ref, digest, host, name)
) WITHOUT ROWID, STRICT
"""
"""Where in registries the OCI layers of an image lie (`origins`), and which blobs were read here."""

MIGRATIONS: tuple[str, ...] = (_FIRST, _SHARED, _OCI, history.TABLES, _PACKED, _ORIGINS)
"""Step n takes a database of schema version n to n + 1. Steps are only added."""

Statement = tuple[str, tuple[Any, ...]]

_BUSY_TIMEOUT_S = 10.0


class Catalogue:
    """Calls are safe from several threads.

    :raises InternalError: the database is of a newer version of DSec, or damaged.
    """

    def __init__(self, path: str, layers_dir: str | None = None) -> None:
        self._layers_dir = layers_dir or os.path.join(os.path.dirname(os.path.abspath(path)), "layers")
        self._path = path
        self._writing = threading.RLock()
        self._reading = threading.RLock()
        self._cache: dict[str, ImageRecord] = {}
        self._cache_version = -1
        self._database = _connect(path)
        # of its own: the event loop reads, and must not wait until a thread's commit is on the disk
        self._reader = _connect(path)
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute("PRAGMA foreign_keys = ON")
            self._migrate()
            self._reader.execute("PRAGMA query_only = ON")
        except sqlite3.DatabaseError as error:
            self.close()
            raise InternalError(f"cannot open the catalogue {path}: {error}", path=path) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with self._writing, self._reading:
            self._reader.close()
            self._database.close()

    def publish(self, image: ImageRecord, made_by: Sequence[str] = (), beside: Sequence[Statement] = ()) -> None:
        """Make an image known under its name, for good. `made_by` says of each of its layers how it came to be.
        `beside` is written with the image or not at all.

        :raises AlreadyExistsError: the name is taken; nothing has changed.
        :raises InvalidArgumentError: its configuration is too large.
        """
        parse_ref(image.ref)
        if (fault := config_fault(image.config)) is not None:
            raise InvalidArgumentError(f"cannot publish {image.ref}: {fault}", ref=image.ref)
        with self.transaction() as database:
            if database.execute("SELECT 1 FROM images WHERE ref = ?", (image.ref,)).fetchone():
                raise already_exists(image.ref)
            for layer in image.layers:
                database.execute(
                    "INSERT OR IGNORE INTO layers VALUES (?, ?, ?, ?, ?)",
                    (layer.digest, layer.metadata_bytes, layer.data_bytes, layer.files, layer.metadata_digest),
                )
            config = msgspec.json.encode(image.config)
            row = (image.ref, image.kind, config, image.created_at, image.parent)
            database.execute("INSERT INTO images VALUES (?, ?, ?, ?, ?)", row)
            database.executemany(
                "INSERT INTO image_layers VALUES (?, ?, ?)",
                [(image.ref, position, layer.digest) for position, layer in enumerate(image.layers)],
            )
            history.record(database, image, made_by)
            for statement in beside:
                database.execute(*statement)

    def get(self, ref: str) -> ImageRecord:
        """:raises ImageNotFoundError: no image of that name.
        :raises InvalidArgumentError: not a name with a tag."""
        with self._reading:
            self._refresh()
            found = self._cache.get(ref)
            if found is not None:
                return found
            parse_ref(ref)
            with self._moment():
                found = self._cache[ref] = self._load(ref)
            return found

    def exists(self, ref: str) -> bool:
        return bool(self.rows("SELECT 1 FROM images WHERE ref = ?", (ref,)))

    def list(self) -> tuple[ImageRecord, ...]:
        """All images by name."""
        with self._moment():
            return tuple(self.get(ref) for (ref,) in self.rows("SELECT ref FROM images ORDER BY ref"))

    def layer(self, digest: str) -> LayerRecord:
        """:raises ImageNotFoundError: no image has such a layer."""
        rows = self.rows("SELECT * FROM layers WHERE digest = ?", (digest,))
        if not rows:
            raise ImageNotFoundError(f"cannot find layer {digest}: no image has it", digest=digest)
        return self._record(*rows[0])

    def has_layer(self, digest: str) -> bool:
        """Whether an image has it."""
        return bool(self.rows("SELECT 1 FROM layers WHERE digest = ?", (digest,)))

    def remove(self, ref: str, check: Callable[[tuple[str, ...]], None] | None = None) -> tuple[str, ...]:
        """Forget an image. Returns the digests of layers that no image has any more.

        `check` is called with these before anything has changed; what it raises ends the call.
        :raises ImageNotFoundError: no image of that name.
        """
        with self.transaction() as database:
            if not self.exists(ref):
                raise _not_found(ref)
            rows = database.execute(
                "SELECT DISTINCT digest FROM image_layers AS mine WHERE ref = ? AND NOT EXISTS "
                "(SELECT 1 FROM image_layers AS other WHERE other.digest = mine.digest AND other.ref != mine.ref)",
                (ref,),
            )
            orphans = tuple(sorted(digest for (digest,) in rows))
            if check is not None:
                check(orphans)
            database.execute("DELETE FROM images WHERE ref = ?", (ref,))
            database.executemany("DELETE FROM layers WHERE digest = ?", [(digest,) for digest in orphans])
        return orphans

    def _load(self, ref: str) -> ImageRecord:
        images = self.rows("SELECT kind, config, created_at, parent FROM images WHERE ref = ?", (ref,))
        if not images:
            raise _not_found(ref)
        kind, config, created_at, parent = images[0]
        layers = self.rows(
            "SELECT layers.* FROM image_layers JOIN layers USING (digest) WHERE ref = ? ORDER BY position", (ref,)
        )
        records = tuple(self._record(*layer) for layer in layers)
        return ImageRecord(ref, kind, records, msgspec.json.decode(config, type=ImageConfig), created_at, parent)

    def _record(
        self, digest: str, metadata_bytes: int, data_bytes: int, files: int, metadata_digest: str
    ) -> LayerRecord:
        directory = layer_directory(self._layers_dir, digest)
        return LayerRecord(
            digest,
            os.path.join(directory, METADATA_NAME),
            os.path.join(directory, DATA_NAME),
            metadata_bytes,
            data_bytes,
            files,
            metadata_digest,
        )

    def _refresh(self) -> None:
        """Drop what is in memory when another connection has written, such as our own that does."""
        ((version,),) = self.rows("PRAGMA data_version")
        if version != self._cache_version:
            self._cache.clear()
            self._cache_version = version

    def rows(self, query: str, arguments: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        """Of what is committed; for the tables of rooms beside this one too."""
        with self._reading:
            return self._reader.execute(query, arguments).fetchall()

    @contextmanager
    def _moment(self) -> Iterator[None]:
        """Several reads of one state."""
        with self._reading:
            if self._reader.in_transaction:
                yield
                return
            self._reader.execute("BEGIN")
            try:
                yield
            finally:
                self._reader.execute("ROLLBACK")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything in it is written, durably, or nothing.

        :raises CapacityError: the disk is full.
        """
        with self._writing:
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield self._database
                self._database.execute("COMMIT")
            except sqlite3.OperationalError as error:
                self._roll_back()
                if "full" not in str(error):
                    raise
                raise CapacityError(f"cannot write the catalogue {self._path}: {error}", path=self._path) from error
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    def _migrate(self) -> None:
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if version == len(MIGRATIONS):
            return  # nothing is written: a node whose disk is full must still start, or nobody could make room
        with self.transaction() as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version > len(MIGRATIONS):
                raise InternalError(
                    f"cannot open the catalogue {self._path}: its schema version is {version}, this DSec knows "
                    f"{len(MIGRATIONS)}; use the newer DSec that wrote it",
                    version=version,
                )
            for step in range(version, len(MIGRATIONS)):
                for statement in MIGRATIONS[step].split(";"):
                    database.execute(statement)
            database.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _connect(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)


def layer_directory(layers_dir: str, digest: str) -> str:
    """Where a layer of that digest lies."""
    return os.path.join(layers_dir, digest.removeprefix("sha256:"))


def already_exists(ref: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"cannot publish {ref}: there is such an image and names are immutable; use another tag, or remove it first",
        ref=ref,
    )


def _not_found(ref: str) -> ImageNotFoundError:
    return ImageNotFoundError(
        f"cannot find image {ref}: nothing is published under that name; `dsec image ls` lists what is", ref=ref
    )
