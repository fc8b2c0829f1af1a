"""An image to a registry, a layout or an archive.

Each layer becomes one blob, or is the blobs that it was pulled as, where the registry has them (`origins`). What it is
as a blob is remembered, so that one which is there already costs a question. Blobs are made in a directory of the
store that is gone at the end, one layer at a time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from dsec.store import disk_full, origins
from dsec.store.history import Blob, entries, known_blob, remember_blob
from dsec.store.layer_data import require_whole
from dsec.store.local import LocalStore
from dsec.store.origins import PulledBlob
from dsec.store.records import ImageRecord, LayerRecord
from libdsec.protocol.environment import BuildProgress, parse_ref
from libdsec.protocol.errors import InvalidArgumentError
from libdsec.protocol.images import HistoryEntry, ImagePushed, ImagePushRequest

from . import known
from .config import make_config
from .layer_blob import pack_layer
from .manifest import MAX_LAYERS, OCI_CONFIG, OCI_LAYER, OCI_LAYER_GZIP, OCI_LAYER_ZSTD, OCI_MANIFEST
from .reference import RegistryPlace, parse_place
from .registry import Registry
from .targets import RegistryTarget, Target, layout_target

Progress = Callable[[BuildProgress], None]
"""Called about each MiB, and about each half second while a registry is waited for. What it raises ends the push."""

_TOLD_EVERY: Final = 1024 * 1024


Fetch = Callable[[LayerRecord, Callable[[int], None]], None]
"""Returns when all of a layer's data is on this node; meanwhile tells how much came, about once a second."""


def require_here(layer: LayerRecord, told: Callable[[int], None]) -> None:
    """The `Fetch` of a store that fetches nothing."""
    require_whole(layer)


def push_image(
    store: LocalStore, request: ImagePushRequest, progress: Progress, fetch: Fetch = require_here
) -> ImagePushed:
    """Blocking. A push that fails leaves nothing, but for blobs that a registry has taken. `fetch` is called before a
    layer's data is read, which the destination may have already.

    :raises ImageNotFoundError: no such image.
    :raises InvalidArgumentError: no destination for images.
    :raises DSecError: what `fetch` raises; `ConflictError` where a layer's data is not all on this node.
    :raises UnavailableError, UnauthenticatedError, PermissionDeniedError: what the registry says.
    :raises CapacityError: the disk is full.
    """
    with (
        disk_full.typed(f"push {request.ref}", store.state_dir),
        store.keeping(request.ref) as image,
        store.build_directory() as directory,
    ):
        push = _Push(store, image, directory, progress, fetch)
        with closing(_target(request, parse_ref(image.ref).tag, directory, push.pulse)) as target:
            digest = push.run(target)
    return ImagePushed(request.destination, digest, push.bytes_sent)


def _target(request: ImagePushRequest, tag: str, directory: str, pulse: Callable[[], None]) -> Target:
    place = parse_place(request.destination)
    if not isinstance(place, RegistryPlace):
        return layout_target(place, tag, directory, pulse)
    if place.digest:
        raise InvalidArgumentError(f"cannot push to {place}: it must end in :TAG, not in a digest", field="destination")
    registry = Registry(place, login=request.login, plain_http=request.plain_http, writes=True, pulse=pulse)
    return RegistryTarget(registry, place.reference)


class _Push:
    """One push under way."""

    def __init__(self, store: LocalStore, image: ImageRecord, directory: str, progress: Progress, fetch: Fetch) -> None:
        self._fetch = fetch
        self._store = store
        self._image = image
        self._directory = directory
        self._progress = progress
        self._news = BuildProgress("pack")
        self._told = 0
        self.bytes_sent = 0

    def pulse(self) -> None:
        self._progress(self._news)

    def run(self, target: Target) -> str:
        """The digest of the manifest that the target has now."""
        layers: list[Sequence[PulledBlob]] = []
        for left, layer in zip(range(len(self._image.layers), 0, -1), self._image.layers, strict=True):
            beneath = _diff_ids(layers)
            # each of those above needs one at least
            layers.append(self._layer(layer, beneath, MAX_LAYERS - len(beneath) - (left - 1), target))
        steps = _steps(entries(self._store.catalogue, self._image), layers)
        config = make_config(self._image.config, _diff_ids(layers), steps, _moment(self._image.created_at))
        config_digest = self._small(config, target)
        manifest = msgspec.json.encode(
            {
                "schemaVersion": 2,
                "mediaType": OCI_MANIFEST,
                "config": _descriptor(OCI_CONFIG, config_digest, len(config)),
                "layers": [_descriptor(blob.media_type, blob.digest, blob.size) for blobs in layers for blob in blobs],
            }
        )
        target.put_manifest(manifest)
        return f"sha256:{hashlib.sha256(manifest).hexdigest()}"

    def _layer(self, layer: LayerRecord, beneath: Sequence[str], most: int, target: Target) -> Sequence[PulledBlob]:
        """What it is there, over layers with these diff_ids: `most` blobs at most."""
        pulled = [(name, blobs) for name, blobs in self._pulled(layer, beneath, target) if len(blobs) <= most]
        for _, blobs in pulled:
            if all(target.has_blob(blob.digest) for blob in blobs):
                return blobs
        blob = known_blob(self._store.catalogue, layer.digest)
        if blob is None or not target.has_blob(blob.digest):
            for name, blobs in pulled:
                if all(target.has_blob(each.digest, name) for each in blobs):
                    return blobs
            blob = self._packed(layer, target)
        return (PulledBlob(blob.digest, blob.bytes, blob.diff_id, OCI_LAYER_GZIP),)

    def _pulled(
        self, layer: LayerRecord, beneath: Sequence[str], target: Target
    ) -> list[tuple[str, Sequence[PulledBlob]]]:
        """As what it came from this registry: from which repository, and the blobs as a push names them."""
        below = known.below(self._image.kind, beneath)
        found = origins.find(self._store.catalogue, self._image.ref, layer.digest, target.host, below)
        typed = [(each.name, [replace(blob, media_type=_oci_type(blob)) for blob in each.blobs]) for each in found]
        return [(name, blobs) for name, blobs in typed if all(blob.media_type for blob in blobs)]

    def _packed(self, layer: LayerRecord, target: Target) -> Blob:
        self._fetch(layer, self._fetched)
        path = os.path.join(self._directory, "layer")
        blob = pack_layer(layer, path, lambda done: self._tell("pack", done))
        remember_blob(self._store.catalogue, layer.digest, blob)
        self._put(blob.digest, blob.bytes, path, target)
        os.unlink(path)
        return blob

    def _small(self, document: bytes, target: Target) -> str:
        digest = f"sha256:{hashlib.sha256(document).hexdigest()}"
        path = os.path.join(self._directory, "document")
        with open(path, "xb") as file:
            file.write(document)
        self._put(digest, len(document), path, target)
        os.unlink(path)
        return digest

    def _put(self, digest: str, size: int, path: str, target: Target) -> None:
        if target.has_blob(digest):
            return
        before = self.bytes_sent

        def told(more: int) -> None:
            self.bytes_sent += more
            self._tell("send", self.bytes_sent)

        target.put_blob(digest, size, path, told)
        self.bytes_sent = before + size

    def _fetched(self, size: int) -> None:
        self._news = BuildProgress("fetch", size)
        self.pulse()

    def _tell(self, stage: str, done: int) -> None:
        if not done or stage != self._news.stage or done < self._told or done - self._told >= _TOLD_EVERY:
            self._told = done
            self._news = BuildProgress(stage, done)
            self._progress(self._news)


def _descriptor(media_type: str, digest: str, size: int) -> dict[str, str | int]:
    return {"mediaType": media_type, "digest": digest, "size": size}


def _diff_ids(layers: Sequence[Sequence[PulledBlob]]) -> list[str]:
    return [blob.diff_id for blobs in layers for blob in blobs]


def _oci_type(blob: PulledBlob) -> str:
    """OCI's name for a layer that may have come with Docker's; empty for what is none that may be pushed."""
    if "foreign" in blob.media_type or "nondistributable" in blob.media_type:
        return ""
    types = {"gzip": OCI_LAYER_GZIP, "zstd": OCI_LAYER_ZSTD, "tar": OCI_LAYER}
    return next((type for end, type in types.items() if blob.media_type.endswith(end)), "")


def _steps(told: Sequence[HistoryEntry], layers: Sequence[Sequence[PulledBlob]]) -> list[dict[str, str]]:
    """One for each blob. Of several that are one layer here the last has its words."""
    steps: list[dict[str, str]] = []
    for entry, blobs in zip(told, layers, strict=True):
        moment, how = _moment(entry.created_at), entry.made_by or f"layer {entry.layer.digest}"
        steps += [{"created": moment}] * (len(blobs) - 1) + [{"created": moment, "created_by": how}]
    return steps


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
