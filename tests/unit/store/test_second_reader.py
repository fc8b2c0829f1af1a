"""A reader of shared stores that was written by docs/layers.md alone, and reads what the product writes."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import sys
from pathlib import Path

from blake3 import blake3
from published import CHUNK, data_of, node, noise, open_impatient, put_image, quiet

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


class Reader:
    def __init__(self, store: Path, name: str, tag: str) -> None:
        self.store = store
        self.manifest = json.loads((store / "names" / name / "_tags" / tag).read_bytes())

    def layer(self, number: int) -> tuple[bytes, bytes]:
        """(metadata image, data file)."""
        named = self.manifest["layers"][number]["digest"]
        directory = self.store / "layers" / named.removeprefix("sha256:")
        table = (directory / "layer").read_bytes()
        assert hashlib.sha256(table[:-32]).digest() == table[-32:]
        assert table[:16] == b"dsec layer table"
        generation, layer_generation, chunk_size, chunks, packs, zero = struct.unpack_from("<6I", table, 16)
        assert (generation, layer_generation, zero) == (1, 3, 0)
        metadata_bytes, data_bytes, _ = struct.unpack_from("<3Q", table, 40)
        metadata_digest = table[64:96]
        assert table[96:128] == bytes(32)
        digests_at = 128 + 40 * packs
        places_at = digests_at + 32 * chunks
        assert len(table) == places_at + 16 * chunks + 32
        header = struct.pack("<16sI32sQQ", b"dsec layer", layer_generation, metadata_digest, chunk_size, chunks)
        assert hashlib.sha256(header + table[digests_at:places_at]).hexdigest() == named.removeprefix("sha256:")
        metadata = zstd.decompress((directory / "metadata.zst").read_bytes())
        assert (len(metadata), hashlib.sha256(metadata).digest()) == (metadata_bytes, metadata_digest)
        data = b""
        for chunk in range(chunks):
            length = min(chunk_size, data_bytes - chunk * chunk_size)
            content = self.chunk(table, places_at + 16 * chunk, length)
            digest = table[digests_at + 32 * chunk : digests_at + 32 * chunk + 32]
            assert blake3(content).digest() == digest
            data += content
        return metadata, data

    def chunk(self, table: bytes, at: int, length: int) -> bytes:
        number, offset, stored, encoding = struct.unpack_from("<4I", table, at)
        if encoding == 0:
            assert (number, offset, stored) == (0, 0, 0)
            return bytes(length)
        digest, size = struct.unpack_from("<32sQ", table, 128 + 40 * number)
        pack = (self.store / "packs" / digest.hex()[:2] / digest.hex()).read_bytes()
        assert len(pack) == size
        assert hashlib.sha256(pack).digest() == digest
        content = pack[offset : offset + stored]
        return content if encoding == 1 else zstd.decompress(content)


def read(path: str) -> bytes:
    return Path(path).read_bytes()


async def test_it_reads_what_we_write(tmp_path: Path) -> None:
    with node(tmp_path / "a", open_impatient(str(tmp_path / "shared"))) as (local, shared):
        image = put_image(
            local, "repo/app:v1", noise(1) + bytes(CHUNK) + b"text " * 100_000 + noise(1), noise(2, 5000), b""
        )
        await shared.publish("repo/app:v1", quiet)
        reader = Reader(tmp_path / "shared", "repo/app", "v1")
        assert reader.manifest["ref"] == "repo/app:v1"
        assert reader.manifest["schema"] == 1
        for number, layer in enumerate(image.layers):
            metadata, data = reader.layer(number)
            assert read(layer.metadata) == metadata
            assert data_of(layer) == data
            facts = json.loads(read(f"{layer.directory}/layer.json"))
            joined = base64.b64decode(facts["chunk_digests"])
            pieces = [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)]
            assert joined == b"".join(blake3(piece).digest() for piece in pieces)
            assert base64.b64decode(facts["metadata_digest"]) == hashlib.sha256(metadata).digest()
