"""Publishing: what an image is made of goes to the shared store, its manifest last.

What is there is not sent again, and that is all there is to resuming. What a crash leaves is objects that nothing names
yet.
"""

from __future__ import annotations

import asyncio

from dsec.store.history import entries
from dsec.store.local import LocalStore
from dsec.store.records import ImageRecord
from dsec.store.threads import in_thread
from libdsec.protocol.errors import AlreadyExistsError, ConflictError, UnavailableError
from libdsec.protocol.images import ImagePublished

from .known import Known
from .manifest import (
    MAX_MANIFEST_BYTES,
    Manifest,
    decode_manifest,
    encode_manifest,
    layer_path,
    manifest_of,
    manifest_path,
)
from .objects import Objects
from .sending import LayerPublication, Progress, Sent, complete_table
from .table import MAX_TABLE_BYTES
from .taking import taking


async def publish_image(
    objects: Objects, local: LocalStore, ref: str, progress: Progress, *, raw: bool = False
) -> ImagePublished:
    """Publish an image of this node in the shared store, under the same name. With `raw` each layer's data file is
    written as it is too, where the store is a directory.

    :raises ImageNotFoundError: this node has no such image.
    :raises AlreadyExistsError: the store has another image of that name.
    :raises ConflictError: its data lies in another store, and is not whole here.
    :raises CapacityError: the store is full.
    :raises UnavailableError: the store cannot be reached; what came there is not sent again next time.
    :raises UnsupportedOperationError, PermissionDeniedError: the store cannot be written, or replaces what it should
        only create.
    """
    objects.require_writable(f"publish {ref}")
    image = local.catalogue.get(ref)
    manifest = manifest_of(image, [entry.made_by for entry in entries(local.catalogue, image)])
    content = encode_manifest(manifest)
    there = await _published(objects, manifest)
    known = Known(local.catalogue, objects.url)
    sent = Sent(progress)
    async with taking(local) as taken:
        for layer in image.layers:
            if await in_thread(None, taken.find, layer.digest) is None:
                raise ConflictError(f"cannot publish {ref}: it was removed meanwhile", ref=ref)
        # the smallest first: with its table the store is tried, before much is sent
        for layer in sorted(image.layers, key=lambda layer: layer.data_bytes):
            await LayerPublication(objects, known, layer, raw, sent).run()
            if not there:
                await objects.require_creation(layer_path(layer.digest, "layer"), MAX_TABLE_BYTES)
        if not there:
            if await objects.put(manifest_path(ref), content):
                sent.bytes += len(content)
            elif not await _published(objects, manifest):
                raise UnavailableError(
                    f"cannot publish {ref}: {objects.url} said that there is an image of that name, and there is none; "
                    "publish it again",
                    store=objects.url,
                )
    await asyncio.to_thread(known.add_image, ref)
    return ImagePublished(ref, objects.url, sent.chunks, sent.chunks_new, sent.bytes)


async def has_image(objects: Objects, image: ImageRecord) -> bool:
    """Whether the store has this very image, with all that its layers need.

    :raises DSecError: it cannot be known.
    """
    found = await objects.get(manifest_path(image.ref), MAX_MANIFEST_BYTES)
    if found is None or not decode_manifest(found, image.ref).says_the_same(manifest_of(image)):
        return False
    for layer in image.layers:
        content = await objects.get(layer_path(layer.digest, "layer"), MAX_TABLE_BYTES)
        if content is None or await complete_table(objects, content, layer.digest) is None:
            return False
    return True


async def _published(objects: Objects, manifest: Manifest) -> bool:
    """Whether the store has this very image under its name."""
    found = await objects.get(manifest_path(manifest.ref), MAX_MANIFEST_BYTES)
    if found is None:
        return False
    if not decode_manifest(found, manifest.ref).says_the_same(manifest):
        raise AlreadyExistsError(
            f"cannot publish {manifest.ref}: {objects.url} has another image of that name, and names are immutable; "
            "use another tag",
            ref=manifest.ref,
            store=objects.url,
        )
    return True
