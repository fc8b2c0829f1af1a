"""One OCI layer becomes one EROFS layer, straight from its compressed stream."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Final

from dsec.store.build import LayerBuild, build_layer
from dsec.store.sources.base import Entry, Source, SourceItem
from dsec.store.sources.compression import DecompressionError, open_plain
from dsec.store.sources.tar import TarSource
from dsec.store.tree import invalid
from libdsec.protocol.errors import CapacityError, InvalidArgumentError

from .blobs import Verified
from .source import ImageSource, LayerBlob

MAX_PLAIN_BYTES: Final = 64 * 1024**3
"""What a layer may expand to."""
MIN_FREE_BYTES: Final = 1024**3
"""What is left of the disk for everybody else, or a twentieth of a small disk."""
_LOOK_BYTES: Final = 16 * 1024**2


def convert(
    source: ImageSource,
    layer: LayerBlob,
    directory: str,
    name: str,
    told: Callable[[int], None],
    *,
    most: int = MAX_PLAIN_BYTES,
) -> LayerBuild:
    """Build `name` in `directory` from the layer. `told` is called with the bytes of each read and may raise.

    :raises IntegrityError: its bytes are not those of its digest or of its uncompressed digest.
    :raises InvalidArgumentError: no layer can be made of it; it is larger than `most` uncompressed.
    :raises CapacityError: the disk is full, or would be.

    After an error nothing of it is left.
    """
    with closing(source.open_layer(layer, told)) as blob:
        try:
            bounds = _Bounds(directory, layer.diff_id, most)
            plain = Verified(
                open_plain(blob).detach(), f"layer {layer.diff_id}, uncompressed", digest=layer.diff_id, told=bounds
            )
            build = build_layer(_Layer(plain), directory, name)
        except (InvalidArgumentError, DecompressionError) as error:
            # what is wrong with bytes that nobody promised is not worth telling
            blob.drain()
            if isinstance(error, DecompressionError):
                raise InvalidArgumentError(f"cannot read layer {layer.diff_id}: it {error}") from None
            raise
        try:
            plain.drain()
            blob.drain()
        except BaseException:
            os.unlink(build.metadata_path)
            os.unlink(build.data_path)
            raise
    return build


class _Bounds:
    """Counts uncompressed bytes, and looks after the disk."""

    def __init__(self, directory: str, diff_id: str, most: int) -> None:
        self._directory = directory
        self._diff_id = diff_id
        self._most = most
        self._count = 0
        self._next_look = 0

    def __call__(self, count: int) -> None:
        self._count += count
        if self._count > self._most:
            raise InvalidArgumentError(
                f"cannot read layer {self._diff_id}: it expands to more than {self._most} bytes", limit=self._most
            )
        if self._count >= self._next_look:
            self._next_look = self._count + _LOOK_BYTES
            disk = os.statvfs(self._directory)
            least = min(MIN_FREE_BYTES, disk.f_blocks * disk.f_frsize // 20)
            if disk.f_bavail * disk.f_frsize < least:
                raise CapacityError(
                    f"cannot read layer {self._diff_id}: less than {least >> 20} MiB are left of the disk of "
                    f"{self._directory}",
                    path=self._directory,
                )


class _Layer:
    """The tar of a layer as a source, without what would speak to the overlay that it is mounted in."""

    def __init__(self, plain: Verified) -> None:
        # the digest says whether it is whole; an end mark is left out by some tools
        self._tar: Source = TarSource(plain, whiteouts="oci", end_mark=False, compressed=False)

    def entries(self) -> Generator[SourceItem, None, None]:
        for item in self._tar.entries():
            if isinstance(item, Entry) and stat.S_ISCHR(item.node.mode) and item.node.rdev == 0:
                raise invalid(item.path, "device 0:0 cannot be in a layer: an overlay takes it for a removed name")
            yield item
