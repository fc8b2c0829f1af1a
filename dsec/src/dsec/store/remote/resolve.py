"""Resolving: an image of the shared store becomes one of this node. Its metadata comes here whole and checked; of its
data only where it lies."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os

from dsec.store.local import LocalStore, Taken
from dsec.store.records import METADATA_NAME, ImageRecord, LayerRecord
from libdsec.protocol.errors import AlreadyExistsError, CapacityError, ImageNotFoundError, IntegrityError

from .beside import write_beside, write_durably
from .chunks import decompress
from .known import Known
from .manifest import MAX_MANIFEST_BYTES, Manifest, ManifestLayer, decode_manifest, layer_path, manifest_path
from .objects import Objects
from .table import MAX_TABLE_BYTES, LayerTable, decode_table
from .threads import in_thread

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
    with local.taking() as taken:

        async def one(wanted: ManifestLayer) -> LayerRecord:
            async with turns:
                return await _layer(objects, local, taken, known, wanted)

        try:
            async with asyncio.TaskGroup() as group:
                fetching = [group.create_task(one(layer)) for layer in manifest.layers]
        except BaseExceptionGroup as failed:
            raise first_error(failed) from None
        layers = tuple(task.result() for task in fetching)
        image = ImageRecord(ref, manifest.kind, layers, manifest.config, manifest.created_at, manifest.parent)
        try:
            await in_thread(None, local.publish_image, image)
        except AlreadyExistsError:
            return local.catalogue.get(ref)  # an image of that name was made here meanwhile
    await asyncio.to_thread(known.add_image, ref)
    return image


def first_error(group: BaseException) -> BaseException:
    """Why a task group failed: the others were canceled for it."""
    return first_error(group.exceptions[0]) if isinstance(group, BaseExceptionGroup) else group


async def _layer(objects: Objects, local: LocalStore, taken: Taken, known: Known, wanted: ManifestLayer) -> LayerRecord:
    layer = taken.find(wanted.digest)
    if layer is None:
        content = await _required(objects, layer_path(wanted.digest, "layer"), MAX_TABLE_BYTES)
        table = await in_thread(None, decode_table, content, wanted.digest)
        stored = await _required(
            objects, layer_path(wanted.digest, "metadata.zst"), _compress_bound(table.file.metadata_bytes)
        )
        layer = await in_thread(None, _take, objects.url, local, taken, content, table, stored)
        await asyncio.to_thread(known.add_table, table)
    found = ManifestLayer(layer.digest, layer.metadata_bytes, layer.data_bytes, layer.files, layer.metadata_digest)
    if found != wanted:
        raise IntegrityError(
            f"cannot use layer {wanted.digest} of the shared store: the manifest says other things of it than the "
            "layer itself",
            digest=wanted.digest,
        )
    return layer


async def _required(objects: Objects, path: str, limit: int) -> bytes:
    content = await objects.get(path, limit)
    if content is None:
        raise IntegrityError(f"cannot read {path} of {objects.url}: it is missing", store=objects.url, path=path)
    return content


def _take(store: str, local: LocalStore, taken: Taken, content: bytes, table: LayerTable, stored: bytes) -> LayerRecord:
    file = table.file
    image = decompress(stored, file.metadata_bytes, f"the metadata image of layer {file.digest}")
    if hashlib.sha256(image).digest() != file.metadata_digest:
        raise IntegrityError(
            f"cannot use layer {file.digest} of the shared store: its metadata image does not match its digest",
            digest=file.digest,
        )
    try:
        with local.build_directory() as directory:
            metadata = os.path.join(directory, METADATA_NAME)
            write_durably(metadata, image)
            return taken.add(file, {METADATA_NAME: metadata, **write_beside(directory, store, content)})
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise CapacityError(
            f"cannot take layer {file.digest}: no room in {local.state_dir}: {error.strerror}", path=local.state_dir
        ) from error


def _compress_bound(size: int) -> int:
    """The most that a frame of `size` bytes has."""
    return size + (size >> 7) + 1024
