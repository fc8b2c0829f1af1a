"""Checking that a layer's files are what its digest says."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

import msgspec

from libdsec.protocol.errors import IntegrityError

from .digest import DIGEST_SIZE, LAYER_GENERATION, chunk_digest, layer_digest
from .records import RECORD_NAME, RECORD_SCHEMA, LayerFile, LayerRecord

_READ = 1024 * 1024


def check_for_mount(layer: LayerRecord) -> None:
    """What can be checked in a few milliseconds: the whole metadata image, and the data's length.

    :raises IntegrityError: they are not the layer's.
    """
    check_metadata(layer)
    size = _size(layer.digest, layer.data)
    if size != layer.data_bytes:
        raise _broken(layer.digest, f"{layer.data} has {size} bytes, not {layer.data_bytes}")


def check_metadata(layer: LayerRecord) -> None:
    """:raises IntegrityError: the metadata image is not the layer's."""
    found = _file_digest(layer.digest, layer.metadata).hex()
    if found != layer.metadata_digest:
        raise _broken(layer.digest, f"{layer.metadata} has digest {found}, not {layer.metadata_digest}")


def check_whole(layer: LayerRecord) -> None:
    """Every chunk of the data too, and that the digests together give the layer's name.

    :raises IntegrityError: says which chunk is wrong.
    """
    check_for_mount(layer)
    record = read_layer_file(layer)
    wanted = list(_pieces(record.chunk_digests))
    if layer_digest(record.metadata_digest, wanted, chunk_size=record.chunk_size) != layer.digest:
        raise _broken(layer.digest, f"{RECORD_NAME} does not give its digest")
    if record.metadata_digest.hex() != layer.metadata_digest:
        raise _broken(layer.digest, f"{RECORD_NAME} and catalogue name different metadata images")
    if -(-layer.data_bytes // record.chunk_size) != len(wanted):
        raise _broken(layer.digest, f"{len(wanted)} chunk digests for {layer.data_bytes} bytes")
    with open(layer.data, "rb", buffering=0) as file:
        for number, digest in enumerate(wanted):
            chunk = _read_full(file.fileno(), record.chunk_size)
            if chunk_digest(chunk) != digest:
                raise _broken(layer.digest, f"chunk {number} of {layer.data} does not match", chunk=number)


def read_layer_file(layer: LayerRecord) -> LayerFile:
    """layer.json of a layer.

    :raises IntegrityError: it is missing, damaged or of another version.
    """
    path = os.path.join(layer.directory, RECORD_NAME)
    try:
        with open(path, "rb") as file:
            record = msgspec.json.decode(file.read(), type=LayerFile)
    except (OSError, msgspec.DecodeError) as error:
        raise _broken(layer.digest, f"cannot read {path}: {error}") from error
    if record.schema != RECORD_SCHEMA:
        raise _broken(layer.digest, f"{path} is of schema {record.schema}, this DSec knows {RECORD_SCHEMA}")
    if record.generation != LAYER_GENERATION:
        raise _broken(layer.digest, f"it is of generation {record.generation}, this DSec knows {LAYER_GENERATION}")
    return record


def _pieces(joined: bytes) -> Iterator[bytes]:
    for start in range(0, len(joined), DIGEST_SIZE):
        yield joined[start : start + DIGEST_SIZE]


def _read_full(descriptor: int, count: int) -> bytes:
    parts = []
    while count and (part := os.read(descriptor, count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _file_digest(digest: str, path: str) -> bytes:
    hasher = hashlib.sha256()
    try:
        with open(path, "rb", buffering=0) as file:
            while part := file.read(_READ):
                hasher.update(part)
    except OSError as error:
        raise _broken(digest, f"cannot read {path}: {error.strerror}") from error
    return hasher.digest()


def _size(digest: str, path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise _broken(digest, f"cannot find {path}: {error.strerror}") from error


def _broken(digest: str, why: str, **details: int) -> IntegrityError:
    return IntegrityError(
        f"cannot use layer {digest}: {why}; remove the images that have it and build them again",
        digest=digest,
        **details,
    )
