"""What the node's catalogue remembers of shared stores: where chunks lie, and which images are there.

Chunks only save sending them again; who uses one looks first whether its pack is still there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dsec.store.catalogue import Catalogue, Statement
from dsec.store.digest import DIGEST_SIZE

from .table import ZEROS, LayerTable, Pack, Place

MAX_PACKS = 16_384
"""Of one store that are remembered: 1 TiB of compressed chunks; beyond that the oldest are forgotten."""

_ASKED_AT_ONCE = 500


class KnownChunk(NamedTuple):
    pack: Pack
    offset: int
    stored: int
    encoding: int


class Known:
    """Of one store. Calls are safe from several threads; each is a look at, or a write to, the database."""

    def __init__(self, catalogue: Catalogue, store: str) -> None:
        self._catalogue = catalogue
        self._store = store

    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, KnownChunk]:
        """Those of `digests` that are known, by digest."""
        found: dict[bytes, KnownChunk] = {}
        for start in range(0, len(digests), _ASKED_AT_ONCE):
            some = digests[start : start + _ASKED_AT_ONCE]
            rows = self._catalogue.rows(
                "SELECT store_chunks.digest, store_packs.digest, bytes, start, stored, encoding FROM store_chunks "
                "JOIN store_packs ON pack = id WHERE store = ? AND store_chunks.digest IN "
                f"({','.join('?' * len(some))}) ORDER BY id DESC",
                (self._store, *some),
            )
            for digest, pack, size, offset, stored, encoding in rows:
                found[digest] = KnownChunk(Pack(pack, size), offset, stored, encoding)
        return found

    def add(self, pack: Pack, chunks: Iterable[tuple[bytes, Place]]) -> None:
        """Chunks of one pack, by digest."""
        with self._catalogue.transaction() as database:
            self._add(database, pack, chunks)

    def add_tables(self, tables: Iterable[LayerTable]) -> None:
        """Every chunk of layers that are in the store."""
        with self._catalogue.transaction() as database:
            for table in tables:
                by_pack: dict[int, list[tuple[bytes, Place]]] = {}
                for chunk in range(table.chunks):
                    place = table.place(chunk)
                    if place.encoding != ZEROS:
                        by_pack.setdefault(place.pack, []).append((table.digest(chunk), place))
                for number, chunks in by_pack.items():
                    self._add(database, table.packs[number], chunks)

    def _add(self, database: sqlite3.Connection, pack: Pack, chunks: Iterable[tuple[bytes, Place]]) -> None:
        database.execute(
            "INSERT OR IGNORE INTO store_packs (store, digest, bytes) VALUES (?, ?, ?)",
            (self._store, pack.digest, pack.bytes),
        )
        (number,) = database.execute(
            "SELECT id FROM store_packs WHERE store = ? AND digest = ?", (self._store, pack.digest)
        ).fetchone()
        database.executemany(
            "INSERT OR IGNORE INTO store_chunks VALUES (?, ?, ?, ?, ?)",
            [(digest, number, place.offset, place.stored, place.encoding) for digest, place in chunks],
        )
        database.execute(
            "DELETE FROM store_packs WHERE id IN "
            "(SELECT id FROM store_packs WHERE store = ? ORDER BY id DESC LIMIT -1 OFFSET ?)",
            (self._store, MAX_PACKS),
        )

    def forget(self, pack: Pack) -> None:
        """It is not in the store any more."""
        with self._catalogue.transaction() as database:
            database.execute("DELETE FROM store_packs WHERE store = ? AND digest = ?", (self._store, pack.digest))

    def has_image(self, ref: str) -> Statement:
        """To be written with an image: the store has it, under this name, as the catalogue has it."""
        return "INSERT OR IGNORE INTO store_images SELECT ref, ? FROM images WHERE ref = ?", (self._store, ref)

    def add_image(self, ref: str) -> None:
        """The store has an image of this node."""
        with self._catalogue.transaction() as database:
            database.execute(*self.has_image(ref))

    def images(self) -> frozenset[str]:
        """Names of this node's images that the store has."""
        rows = self._catalogue.rows("SELECT ref FROM store_images WHERE store = ?", (self._store,))
        return frozenset(ref for (ref,) in rows)


def pieces(joined: bytes) -> list[bytes]:
    """Joined digests, one by one."""
    return [joined[at : at + DIGEST_SIZE] for at in range(0, len(joined), DIGEST_SIZE)]
