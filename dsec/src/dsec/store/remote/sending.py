"""Sending one layer: chunks that the store has not, as packs, then its metadata image, then its table.

Packs are made of the same chunks in the same order every time, so that one which was sent before a crash is found by
its name.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from dsec.store.digest import MAX_CHUNKS, chunk_digest
from dsec.store.records import LayerFile, LayerRecord, is_remote
from dsec.store.threads import in_thread
from dsec.store.verify import read_layer_file
from libdsec.protocol.environment import BuildProgress
from libdsec.protocol.errors import IntegrityError, InvalidArgumentError

from .beside import not_whole
from .chunks import compress_metadata, encode_chunk
from .known import Known, pieces
from .manifest import layer_path
from .objects import Objects
from .packing import OpenPack
from .rawdata import publish_raw
from .table import (
    MAX_METADATA_BYTES,
    MAX_TABLE_BYTES,
    ZEROS,
    LayerTable,
    Pack,
    Place,
    decode_table,
    encode_table,
    join_places,
)

Progress = Callable[[BuildProgress], None]

SLICE = 8
"""Chunks that a thread compresses in one go; two threads do."""

NOWHERE = Place(0, 0, 0, ZEROS)


async def complete_table(objects: Objects, content: bytes, digest: str) -> LayerTable | None:
    """A layer's table, where it can be used and all is there that it names."""
    try:
        table = await in_thread(None, decode_table, content, digest)
    except IntegrityError:
        return None
    metadata = await objects.size(layer_path(digest, "metadata.zst"))
    return None if metadata is None or None in await _sizes(objects, table.packs) else table


async def _sizes(objects: Objects, packs: Sequence[Pack]) -> list[int | None]:
    """Their lengths in the store; None for those that are not there, or not whole."""
    found = await asyncio.gather(*(objects.size(pack.path) for pack in packs))
    return [size if size == pack.bytes else None for pack, size in zip(packs, found, strict=True)]


@dataclass
class Sent:
    progress: Progress
    done: int = 0
    chunks: int = 0
    chunks_new: int = 0
    bytes: int = 0

    def looked_at(self, size: int) -> None:
        """So many bytes of data are done with, sent or not."""
        self.done += size
        self.progress(BuildProgress("publish", self.done))


@dataclass
class LayerPublication:
    """Of one layer, once."""

    objects: Objects
    known: Known
    layer: LayerRecord
    raw: bool
    sent: Sent
    packs: list[Pack] = field(default_factory=list)
    places: dict[bytes, Place] = field(default_factory=dict)
    """Of every chunk that is placed already, by digest."""
    replace: bool = False
    """There is a table in the store that cannot be used."""

    async def run(self) -> None:
        file = await asyncio.to_thread(read_layer_file, self.layer)
        digests = pieces(file.chunk_digests)
        if len(digests) > MAX_CHUNKS or file.metadata_bytes > MAX_METADATA_BYTES:
            raise InvalidArgumentError(
                f"cannot publish layer {file.digest}: it has {file.data_bytes} bytes of data and "
                f"{file.metadata_bytes} of metadata, a stored layer has at most {MAX_CHUNKS * file.chunk_size} and "
                f"{MAX_METADATA_BYTES}",
                digest=file.digest,
            )
        table = await self._there(file)
        if table is None:
            table = await self._send(file, digests)
        else:
            await asyncio.to_thread(self.known.add_tables, [table])
        self.sent.chunks += sum(table.place(chunk).encoding != ZEROS for chunk in range(table.chunks))
        if self.raw and self.objects.directory is not None:
            self.sent.bytes += await publish_raw(self.objects.directory, self.layer)

    async def _there(self, file: LayerFile) -> LayerTable | None:
        """The layer's table, where the store has the layer with all that it needs."""
        content = await self.objects.get(layer_path(file.digest, "layer"), MAX_TABLE_BYTES)
        if content is None:
            return None
        table = await complete_table(self.objects, content, file.digest)
        if table is None:
            self.replace = True
        else:
            self.sent.looked_at(file.data_bytes)
        return table

    async def _send(self, file: LayerFile, digests: list[bytes]) -> LayerTable:
        await self._place_known(file, digests)
        new = self._unplaced(file, digests)
        with ExitStack() as stack:
            descriptor = _open(self.layer.data) if new else -1
            if new:
                stack.callback(os.close, descriptor)
            await self._pack(descriptor, file, new)
        await self._send_metadata(file)
        places = join_places([self.places[digest] for digest in digests])
        table = LayerTable(file, tuple(self.packs), places)
        content = await in_thread(None, encode_table, table)
        if await self.objects.put(layer_path(file.digest, "layer"), content, replace=self.replace):
            self.sent.bytes += len(content)
        return table

    async def _place_known(self, file: LayerFile, digests: list[bytes]) -> None:
        """What is all zeros lies nowhere; what the store has lies where it is."""
        lengths = {file.chunk_size, file.data_bytes - (len(digests) - 1) * file.chunk_size}
        for length in lengths if digests else ():
            self.places[chunk_digest(bytes(length))] = NOWHERE
        unknown = [digest for digest in dict.fromkeys(digests) if digest not in self.places]
        known = await asyncio.to_thread(self.known.chunks, unknown)
        packs = tuple(dict.fromkeys(chunk.pack for chunk in known.values()))
        numbers: dict[Pack, int] = {}
        for pack, size in zip(packs, await _sizes(self.objects, packs), strict=True):
            if size is None:
                await asyncio.to_thread(self.known.forget, pack)
            else:
                numbers[pack] = len(self.packs)
                self.packs.append(pack)
        for digest in unknown:
            chunk = known.get(digest)
            if chunk is not None and chunk.pack in numbers:
                self.places[digest] = Place(numbers[chunk.pack], chunk.offset, chunk.stored, chunk.encoding)

    def _unplaced(self, file: LayerFile, digests: list[bytes]) -> list[tuple[int, bytes]]:
        """(number, digest) of chunks that must be sent, each digest once."""
        first: dict[bytes, int] = {}
        for number, digest in enumerate(digests):
            if digest not in self.places:
                first.setdefault(digest, number)
        self.sent.looked_at(file.data_bytes - len(first) * file.chunk_size)
        return [(number, digest) for digest, number in first.items()]

    async def _pack(self, descriptor: int, file: LayerFile, new: list[tuple[int, bytes]]) -> None:
        pack = OpenPack(len(self.packs))
        for start in range(0, len(new), 2 * SLICE):
            some = new[start : start + 2 * SLICE]
            # one core goes on with the second half
            halves = await asyncio.gather(
                *(
                    in_thread(None, _encode, descriptor, self.layer, file.chunk_size, half)
                    for half in (some[:SLICE], some[SLICE:])
                )
            )
            for (_, digest), (encoding, stored) in zip(some, [*halves[0], *halves[1]], strict=True):
                if not pack.has_room(len(stored)):
                    await self._send_pack(pack)
                    pack = OpenPack(len(self.packs))
                self.places[digest] = pack.add(digest, encoding, stored)
            self.sent.looked_at(len(some) * file.chunk_size)
        if pack.chunks:
            await self._send_pack(pack)

    async def _send_pack(self, open_pack: OpenPack) -> None:
        pack = await in_thread(None, open_pack.close)
        size = await self.objects.size(pack.path)
        # written under the name of its digest by whomever: only one of another length is not it
        if size != pack.bytes and await self.objects.put(pack.path, open_pack.content, replace=size is not None):
            self.sent.bytes += pack.bytes
            self.sent.chunks_new += len(open_pack.chunks)
        self.packs.append(pack)
        await asyncio.to_thread(self.known.add, pack, open_pack.chunks)

    async def _send_metadata(self, file: LayerFile) -> None:
        path = layer_path(file.digest, "metadata.zst")
        if not self.replace and await self.objects.size(path) is not None:
            return
        content = await in_thread(None, _metadata, self.layer)
        if await self.objects.put(path, content, replace=self.replace):
            self.sent.bytes += len(content)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise IntegrityError(f"cannot read {path}: {error.strerror}", path=path) from error


def _encode(
    descriptor: int, layer: LayerRecord, chunk_size: int, chunks: list[tuple[int, bytes]]
) -> list[tuple[int, bytes]]:
    return [encode_chunk(_read(descriptor, layer, chunk_size, number, digest)) for number, digest in chunks]


def _read(descriptor: int, layer: LayerRecord, chunk_size: int, number: int, digest: bytes) -> bytes:
    """A chunk of the data file, held against its digest: nothing wrong is published."""
    parts: list[bytes] = []
    at, end = number * chunk_size, min((number + 1) * chunk_size, layer.data_bytes)
    try:
        while at < end and (part := os.pread(descriptor, end - at, at)):
            parts.append(part)
            at += len(part)
    except OSError as error:
        raise IntegrityError(f"cannot read {layer.data}: {error.strerror}", digest=layer.digest) from error
    chunk = b"".join(parts)
    if chunk_digest(chunk) == digest:
        return chunk
    if is_remote(layer):
        raise not_whole(layer)
    raise IntegrityError(
        f"cannot publish layer {layer.digest}: chunk {number} of {layer.data} does not match its digest",
        digest=layer.digest,
        chunk=number,
    )


def _metadata(layer: LayerRecord) -> bytes:
    try:
        with open(layer.metadata, "rb") as file:
            image = file.read(MAX_METADATA_BYTES + 1)
    except OSError as error:
        raise IntegrityError(f"cannot read {layer.metadata}: {error.strerror}", digest=layer.digest) from error
    if hashlib.sha256(image).hexdigest() != layer.metadata_digest:
        raise IntegrityError(
            f"cannot publish layer {layer.digest}: {layer.metadata} does not match its digest", digest=layer.digest
        )
    return compress_metadata(image)
