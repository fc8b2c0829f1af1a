"""Images that lie on this node: OCI layouts (image specification, `image-layout.md`) and what `docker save` writes."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Callable
from contextlib import closing
from typing import Final

import msgspec

from libdsec.protocol.errors import IntegrityError, InvalidArgumentError, NotFoundError

from .blobs import Verified
from .config import parse_config
from .files import DirectoryFiles, Files, Piece, TarFiles
from .manifest import MAX_LAYERS, MAX_MANIFEST_BYTES, Descriptor, Index, broken, parse_manifest
from .reference import FilePlace, local_name
from .source import LayerBlob, Resolved, resolve_documents

NAME: Final = "org.opencontainers.image.ref.name"
FULL_NAME: Final = "io.containerd.image.name"


class _Saved(msgspec.Struct):
    """An image in the manifest.json of `docker save`."""

    Config: str
    Layers: tuple[str, ...] = ()
    RepoTags: tuple[str, ...] | None = None


_decode_saved = msgspec.json.Decoder(tuple[_Saved, ...]).decode


class LayoutSource:
    """See `ImageSource`."""

    def __init__(self, place: FilePlace) -> None:
        self._place = place
        self._files: Files = DirectoryFiles(place.path) if place.scheme == "oci" else TarFiles(place.path)

    def close(self) -> None:
        self._files.close()

    def resolve(self) -> Resolved:
        chosen = self._chosen()
        name = (chosen.annotations or {}).get(FULL_NAME) or (chosen.annotations or {}).get(NAME, "")
        if ":" not in name:
            name = f"{posixpath.basename(self._place.path.rstrip('/')).lower().removesuffix('.tar')}:{name or 'latest'}"
        return resolve_documents(
            str(self._place), self._document(chosen), chosen.media_type, self._document, local_name(name)
        )

    def open_layer(self, layer: LayerBlob, told: Callable[[int], None]) -> Verified:
        return self._verified(layer.digest, layer.size, told)

    def _chosen(self) -> Descriptor:
        where = str(self._place)
        index = self._files.open("index.json")
        if index is None:
            raise broken(where, "it is no OCI layout: it has no index.json")
        try:
            document = parse_manifest(index.read_all(MAX_MANIFEST_BYTES), f"the index of {where}")
        finally:
            index.close()
        if not isinstance(document, Index):
            raise broken(where, "its index.json is no index")
        wanted = self._place.tag
        names = [(each.annotations or {}).get(NAME, "") for each in document.manifests]
        found = [each for each, name in zip(document.manifests, names, strict=True) if wanted in ("", name)]
        if len(found) == 1:
            return found[0]
        there = ", ".join(sorted({name for name in names if name})[:20]) or "none with a name"
        if not found:
            raise NotFoundError(f"cannot find {wanted or 'an image'} in {where}: there are {there}")
        raise InvalidArgumentError(
            f"cannot use {where}: it has {len(found)} images, say which: {there}", field="source"
        )

    def _document(self, descriptor: Descriptor) -> bytes:
        stream = self._verified(descriptor.digest, descriptor.size, lambda _: None)
        try:
            content = bytearray()
            while part := stream.read(descriptor.size + 1):
                content += part
            return bytes(content)
        finally:
            stream.close()

    def _verified(self, digest: str, size: int, told: Callable[[int], None]) -> Verified:
        piece = self._files.open(f"blobs/{digest.replace(':', '/')}")
        if piece is None:
            raise IntegrityError(f"cannot use {self._place}: its blob {digest} is missing")
        return Verified(piece, f"blob {digest} of {self._place}", digest=digest, size=size, told=told)


class DockerSource:
    """See `ImageSource`. Layers have no digest but that of their uncompressed bytes."""

    def __init__(self, place: FilePlace) -> None:
        self._place = place
        self._files = TarFiles(place.path)

    def close(self) -> None:
        self._files.close()

    def resolve(self) -> Resolved:
        where = str(self._place)
        saved = self._chosen()
        body = self._read(saved.Config)
        config = parse_config(body, where)
        if len(config.diff_ids) != len(saved.Layers) or len(saved.Layers) > MAX_LAYERS:
            raise broken(where, f"it has {len(saved.Layers)} layers and {len(config.diff_ids)} digests of layers")
        layers = [self._layer(diff_id, path) for diff_id, path in zip(config.diff_ids, saved.Layers, strict=True)]
        names = [self._place.tag] if self._place.tag else list(saved.RepoTags or ())
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        return Resolved(digest, config.config, tuple(layers), config.made_by, local_name(names[0]) if names else "")

    def open_layer(self, layer: LayerBlob, told: Callable[[int], None]) -> Verified:
        piece = self._piece(layer.path)
        return Verified(piece, f"layer {layer.path[:200]!r} of {self._place}", size=piece.size, told=told)

    def _layer(self, diff_id: str, path: str) -> LayerBlob:
        with closing(self._piece(path)) as piece:
            return LayerBlob("", piece.size, diff_id, path=path)

    def _piece(self, path: str) -> Piece:
        piece = self._files.open(posixpath.normpath(path))
        if piece is None:
            raise IntegrityError(f"cannot use {self._place}: its layer {path[:200]!r} is missing")
        return piece

    def _chosen(self) -> _Saved:
        where = str(self._place)
        try:
            images = _decode_saved(self._read("manifest.json"))
        except (msgspec.DecodeError, RecursionError) as error:
            raise broken(where, f"its manifest.json cannot be read: {error}") from None
        wanted = self._place.tag
        found = [image for image in images if not wanted or wanted in (image.RepoTags or ())]
        if len(found) == 1:
            return found[0]
        there = ", ".join(sorted(tag for image in images for tag in image.RepoTags or ())[:20]) or "none with a name"
        if not found:
            raise NotFoundError(f"cannot find {wanted or 'an image'} in {where}: there are {there}")
        raise InvalidArgumentError(
            f"cannot use {where}: it has {len(found)} images, say which: {there}", field="source"
        )

    def _read(self, name: str) -> bytes:
        piece = self._files.open(posixpath.normpath(name))
        if piece is None:
            raise broken(str(self._place), f"it has no {name[:200]}")
        try:
            return piece.read_all(MAX_MANIFEST_BYTES)
        finally:
            piece.close()
