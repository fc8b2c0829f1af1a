"""What a metadata image from a store must say of itself before a kernel is given it.

Its digest only says that it is the one that the publisher had. A publisher is trusted with what is in an image, as the
maker of every image is; the kernel's less travelled ways (compressed extents, fragments, further devices) are not open
to it.
"""

from __future__ import annotations

import struct

from dsec.store.erofs import format as disk
from dsec.store.records import LayerFile
from libdsec.protocol.errors import IntegrityError

_INCOMPATIBLE = disk.INCOMPAT_CHUNKED_FILE | disk.INCOMPAT_DEVICE_TABLE
_COMPATIBLE = disk.COMPAT_CHECKSUM | disk.COMPAT_MTIME


def check_superblock(image: bytes, file: LayerFile) -> None:
    """:raises IntegrityError: no image as docs/layers.md describes it."""
    why = _wrong(image, file)
    if why is not None:
        raise IntegrityError(
            f"cannot use layer {file.digest} of the shared store: its metadata image is none of ours: {why}",
            digest=file.digest,
        )


def _wrong(image: bytes, file: LayerFile) -> str | None:
    try:
        fields = disk.SUPERBLOCK.unpack_from(image, disk.SUPERBLOCK_OFFSET)
        tag, blocks, mapped, _ = disk.DEVICE_SLOT.unpack_from(image, disk.DEVICE_TABLE_OFFSET)
    except struct.error:
        return f"it has {len(image)} bytes"
    compatible, bits, extension, incompatible, compression, devices, device_slot = (
        fields[2],
        fields[3],
        fields[4],
        *fields[14:18],
    )
    if fields[0] != disk.MAGIC or bits != disk.BLOCK_BITS or extension:
        return "it does not begin like one"
    if compatible & ~_COMPATIBLE or incompatible != _INCOMPATIBLE or compression:
        return f"its features are {compatible:#x}, {incompatible:#x}, {compression:#x}"
    if any(fields[18:22]):
        return "it has directory blocks, name prefixes or packed files of its own"
    if devices != 1 or device_slot != disk.DEVICE_TABLE_OFFSET // disk.DEVICE_SLOT.size or tag.strip(b"\0") or mapped:
        return f"it has {devices} devices, or one in another place"
    if blocks != -(-file.data_bytes // disk.BLOCK_SIZE) or fields[9] * disk.BLOCK_SIZE != len(image):
        return f"it is for {fields[9]} blocks and {blocks} of data"
    return None
