"""Resolving: an image of the shared store becomes one of this node. Its metadata comes here whole and checked; of its
data only where it lies."""

from __future__ import annotations

import asyncio
import hashlib
import os

import msgspec

from dsec.store import disk_full
from dsec.store.durable import write_durably
from dsec.store.local import LocalStore, Taken
from dsec.store.records import METADATA_NAME, ImageRecord, LayerRecord
from dsec.store.threads import in_thread
from libdsec.protocol.errors import AlreadyExistsError, ImageNotFoundError, IntegrityError

from .beside import write_beside
from .chunks import METADATA_WINDOW_BITS, decompress
from .known import Known
from .manifest import MAX_MANIFEST_BYTES, Manifest, ManifestLayer, decode_manifest, facts_of, layer_path, manifest_path
from .objects import Objects
from .superblock import check_superblock
from .table import MAX_METADATA_BYTES, MAX_TABLE_BYTES, LayerTable, decode_table
from .taking import taking

AT_ONCE = 4
"""Layers of an image that are fetched at once."""


async def fetch_manifest(objects: Objects, ref: str) -> Manifest:
    """:raises ImageNotFoundError: the store has no image of that name.
    :raises IntegrityError: its manifest is damaged.
    :raises UnavailableError: the store cannot be reached."""
    content = await objects.get(manifest_path(ref), MAX_MANIFEST_BYTES)
    if content is None:
        raise ImageNotFoundError(
            f"cannot find image {ref}: nothing is published under that name, here or in {objects.url}", ref=ref
        )
    return decode_manifest(content, ref)


async def resolve_image(objects: Objects, local: LocalStore, ref: str) -> ImageRecord:
    """Make the store's image `ref` one of this node.

    :raises ImageNotFoundError: the store has no image of that name.
    :raises IntegrityError: what the store has is damaged; this node is as it was.
    :raises UnavailableError: the store cannot be reached, or is too slow.
    :raises CapacityError: the disk is full.
    """
    manifest = await fetch_manifest(objects, ref)
    known = Known(local.catalogue, objects.url)
    turns = asyncio.Semaphore(AT_ONCE)
    async with taking(local) as taken:

        async def one(wanted: ManifestLayer) -> tuple[LayerRecord, LayerTable | None]:
            async with turns:
                return await _layer(objects, local, taken, wanted)

        try:
            async with asyncio.TaskGroup() as group:
                fetching = [group.create_task(one(layer)) for layer in manifest.layers]
        except BaseExceptionGroup as failed:
            raise first_error(failed) from None
        layers = tuple(task.result()[0] for task in fetching)
        image = ImageRecord(ref, manifest.kind, layers, manifest.config, manifest.created_at, manifest.parent)
        made_by = tuple(layer.made_by for layer in manifest.layers)
        try:
            await in_thread(None, local.publish_image, image, made_by, (known.has_image(ref),))
        except AlreadyExistsError:
            return local.catalogue.get(ref)  # an image of that name was made here meanwhile
    await in_thread(None, known.add_tables, [table for _, table in map(asyncio.Task.result, fetching) if table])
    return image


def first_error(group: BaseException) -> BaseException:
    """Why a task group failed: the others were canceled for it."""
    return first_error(group.exceptions[0]) if isinstance(group, BaseExceptionGroup) else group


async def _layer(
    objects: Objects, local: LocalStore, taken: Taken, wanted: ManifestLayer
) -> tuple[LayerRecord, LayerTable | None]:
    """The layer, and its table if it was fetched."""
    table = None
    layer = await in_thread(None, taken.find, wanted.digest)
    if layer is None:
        limit = _compress_bound(min(wanted.metadata_bytes, MAX_METADATA_BYTES))
        content, stored = await asyncio.gather(
            _required(objects, layer_path(wanted.digest, "layer"), MAX_TABLE_BYTES),
            _required(objects, layer_path(wanted.digest, "metadata.zst"), limit),
        )
        table = await in_thread(None, decode_table, content, wanted.digest)
        layer = await in_thread(None, _take, objects.url, local, taken, content, table, stored)
    if facts_of(layer) != msgspec.structs.replace(wanted, made_by=""):
        raise IntegrityError(
            f"cannot use layer {wanted.digest} of the shared store: the manifest says other things of it than the "
            "layer itself",
            digest=wanted.digest,
        )
    return layer, table


async def _required(objects: Objects, path: str, limit: int) -> bytes:
    content = await objects.get(path, limit)
    if content is None:
        raise IntegrityError(f"cannot read {path} of {objects.url}: it is missing", store=objects.url, path=path)
    return content


def _take(store: str, local: LocalStore, taken: Taken, content: bytes, table: LayerTable, stored: bytes) -> LayerRecord:
    file = table.file
    what = f"the metadata image of layer {file.digest}"
    image = decompress(stored, file.metadata_bytes, METADATA_WINDOW_BITS, what)
    if hashlib.sha256(image).digest() != file.metadata_digest:
        raise IntegrityError(
            f"cannot use layer {file.digest} of the shared store: its metadata image does not match its digest",
            digest=file.digest,
        )
    check_superblock(image, file)
    with disk_full.typed(f"take layer {file.digest}", local.state_dir), local.build_directory() as directory:
        metadata = os.path.join(directory, METADATA_NAME)
        write_durably(metadata, image)
        return taken.add(file, {METADATA_NAME: metadata, **write_beside(directory, store, content)}, directory)


def _compress_bound(size: int) -> int:
    """The most that a frame of `size` bytes has."""
    return size + (size >> 7) + 1024
