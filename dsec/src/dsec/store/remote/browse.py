"""Which images a shared store has."""

from __future__ import annotations

import asyncio
import re
from typing import NamedTuple

import structlog

from libdsec.protocol.environment import ImageInfo, LayerInfo
from libdsec.protocol.errors import DSecError

from .manifest import NAMES, Manifest
from .objects import Objects
from .resolve import fetch_manifest

PAGE = 100
"""Manifests that are read for one answer."""
MAX_NAMES = 100_000

_PATH = re.compile(rf"{NAMES}/(?P<name>.+)/_tags/(?P<tag>[^/]+)")
_log = structlog.get_logger("dsec.store")


class Page(NamedTuple):
    images: tuple[ImageInfo, ...]
    """In the order of names."""
    next: str | None
    """Where the next page begins, if there is one: behind this name."""


async def list_images(objects: Objects, after: str | None) -> Page:
    """Images whose names are above `after`. One whose manifest cannot be used is left out, and logged.

    :raises UnsupportedOperationError: the store cannot be listed.
    :raises CapacityError: it has more names than can be sorted here.
    :raises UnavailableError: it cannot be reached.
    """
    paths = await objects.list(NAMES, MAX_NAMES)
    found = (match for path in paths if (match := _PATH.fullmatch(path)) is not None)
    refs = sorted(ref for match in found if (ref := f"{match['name']}:{match['tag']}") > (after or ""))
    some = refs[:PAGE]
    images = await asyncio.gather(*(_image(objects, ref) for ref in some))
    return Page(tuple(image for image in images if image is not None), some[-1] if len(refs) > PAGE else None)


async def _image(objects: Objects, ref: str) -> ImageInfo | None:
    try:
        return _info(await fetch_manifest(objects, ref))
    except DSecError as error:
        _log.warning("an image of the shared store is not listed", ref=ref, error=str(error))
        return None


def _info(manifest: Manifest) -> ImageInfo:
    layers = tuple(
        LayerInfo(layer.digest, layer.metadata_bytes, layer.data_bytes, layer.files) for layer in manifest.layers
    )
    return ImageInfo(manifest.ref, manifest.kind, layers, manifest.config, manifest.created_at, manifest.parent)
