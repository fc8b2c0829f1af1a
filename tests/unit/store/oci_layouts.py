"""OCI layouts written by hand, so that they can be wrong in any way, and one with all that layers can do."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from layer_trees import CAPABILITY_V2, noise
from tar_bytes import END, header, member, pax

from dsec.store.oci.blobs import Verified
from dsec.store.oci.manifest import OCI_CONFIG, OCI_LAYER_GZIP, OCI_MANIFEST, architecture
from dsec.store.oci.source import LayerBlob, Resolved

MTIME = 1_600_000_000


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def squeezed(tar: bytes) -> bytes:
    return gzip.compress(tar, 1, mtime=0)


def put(layout: Path, data: bytes) -> dict[str, Any]:
    """A blob; its descriptor without a type."""
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    (blobs / digest(data).removeprefix("sha256:")).write_bytes(data)
    return {"digest": digest(data), "size": len(data)}


def config_of(layers: Sequence[bytes], defaults: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "architecture": architecture(),
        "os": "linux",
        "config": defaults or {},
        "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
        **more,
    }


def manifest_of(layout: Path, config: dict[str, Any], blobs: Sequence[bytes], kind: str = OCI_LAYER_GZIP) -> bytes:
    """Its blobs are put as well."""
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": OCI_CONFIG, **put(layout, json.dumps(config).encode())},
        "layers": [{"mediaType": kind, **put(layout, blob)} for blob in blobs],
    }
    return json.dumps(manifest).encode()


def write_layout(
    layout: Path,
    layers: Sequence[bytes],
    *,
    tag: str = "v1",
    defaults: dict[str, Any] | None = None,
    squeeze: Callable[[bytes], bytes] = squeezed,
    kind: str = OCI_LAYER_GZIP,
) -> str:
    """An image of these uncompressed tars; the digest of its manifest."""
    body = manifest_of(layout, config_of(layers, defaults), [squeeze(layer) for layer in layers], kind)
    entry = {"mediaType": OCI_MANIFEST, **put(layout, body), "annotations": {"org.opencontainers.image.ref.name": tag}}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return digest(body)


def tar(*members: bytes) -> bytes:
    return b"".join(members) + END


def directory(name: bytes, mode: int = 0o755, **fields: Any) -> bytes:
    return header(name + b"/", kind=b"5", mode=mode, mtime=fields.pop("mtime", MTIME), **fields)


def file(name: bytes, content: bytes = b"", **fields: Any) -> bytes:
    return member(name, content, **{"mtime": MTIME, **fields})


def link(name: bytes, target: bytes) -> bytes:
    return header(name, kind=b"1", link=target, mtime=MTIME)


def symlink(name: bytes, target: bytes) -> bytes:
    return header(name, kind=b"2", link=target, mode=0o777, mtime=MTIME)


def whiteout(name: bytes) -> bytes:
    parent, slash, last = name.rpartition(b"/")
    return file(parent + slash + b".wh." + last)


def opaque(name: bytes) -> bytes:
    return file(name + b"/.wh..wh..opq")


def sparse(name: bytes, size: int, extents: Sequence[tuple[int, bytes]]) -> bytes:
    """In GNU's form 1.0, with the map before the data."""
    numbers = [len(extents), *(n for offset, data in extents for n in (offset, len(data)))]
    text = b"".join(b"%d\n" % number for number in numbers)
    content = text + bytes(-len(text) % 512) + b"".join(data for _, data in extents)
    return pax(
        (b"GNU.sparse.major", b"1"),
        (b"GNU.sparse.minor", b"0"),
        (b"GNU.sparse.name", name),
        (b"GNU.sparse.realsize", b"%d" % size),
    ) + file(b"GNUSparseFile.0/x", content)


def twenty_layers() -> list[bytes]:
    """Whatever a layer can do to those below it, and a few things that files can be."""
    links = [b"links/%03d" % number for number in range(200)]
    return [
        tar(
            *map(
                directory, (b"bin", b"etc", b"usr", b"usr/lib", b"usr/bin", b"opt", b"opt/old", b"opt/old/deep", b"srv")
            ),
            directory(b"tmp", 0o1777),
            directory(b"home", 0o750, uid=1000, gid=1000),
            symlink(b"lib", b"usr/lib"),
            file(b"usr/lib/libc", noise(9000)),
            file(b"usr/lib/gone", b"by a link"),
            file(b"etc/passwd", b"root:x:0:0::/:/bin/sh\n"),
            file(b"etc/old", b"gone later"),
            file(b"opt/old/deep/file", b"hidden later"),
            directory(b"links"),
            file(links[0], noise(5000, 1)),
            *(link(name, links[0]) for name in links[1:]),
        ),
        tar(directory(b"etc"), file(b"etc/passwd", b"another, longer one\n" * 9, uid=5), whiteout(b"etc/old")),
        tar(directory(b"opt"), directory(b"opt/old", mtime=5), opaque(b"opt/old"), file(b"opt/old/new", b"only this")),
        tar(directory(b"a"), directory(b"a/b"), file(b"a/b/below"), directory(b"c"), file(b"c/file", b"c")),
        tar(directory(b"a"), whiteout(b"a/b"), symlink(b"a/b", b"../c"), whiteout(b"c"), directory(b"c"), file(b"c/n")),
        tar(directory(b"links"), whiteout(links[7]), file(links[100], b"one of its own", mode=0o600)),
        tar(file(b"bin/tool", noise(70_000), mode=0o4755), link(b"bin/tool2", b"bin/tool")),
        tar(
            file(b"tmp/in-an-undescribed-directory"),
            file(b"home/so-is-this", uid=1000),
            file(b"new/so/too", b"n"),
            file(b"lib/by-a-link", b"l"),
            whiteout(b"lib/gone"),
        ),
        tar(
            pax((b"SCHILY.xattr.user.note", b"kept"), (b"SCHILY.xattr.security.capability", CAPABILITY_V2)),
            file(b"bin/capable", b"cap"),
            pax((b"SCHILY.xattr.trusted.overlay.opaque", b"y"), (b"SCHILY.xattr.user.x", b"1")),
            directory(b"usr/lib"),
        ),
        tar(sparse(b"srv/sparse", 96 << 20, [(0, b"head"), (50 << 20, noise(5000)), ((96 << 20) - 4, b"tail")])),
        tar(sparse(b"srv/hole", 1 << 20, [])),
        tar(header(b"srv/null", kind=b"3", device=(1, 3), mtime=MTIME), header(b"srv/pipe", kind=b"6", mtime=MTIME)),
        tar(
            file(b"srv/\xff\xfe-not-text"),
            file("srv/ünïcode".encode()),
            pax((b"path", b"srv/" + b"n" * 255)) + file(b"x"),
        ),
        tar(
            directory(b"kinds"),
            file(b"kinds/f"),
            directory(b"kinds/d"),
            symlink(b"kinds/l", b"f"),
            directory(b"kinds/e"),
        ),
        tar(directory(b"kinds/f"), file(b"kinds/f/in"), file(b"kinds/d", b"now a file"), file(b"kinds/l", b"no link")),
        tar(),
        tar(file(b"srv/large", noise(3 << 20))),
        tar(whiteout(b"usr/lib/libc"), whiteout(b"kinds/e")),
        tar(directory(b"usr/lib"), file(b"usr/lib/libc", b"back"), directory(b"kinds/e", 0o700), opaque(b"kinds/e")),
        tar(
            file(b"etc/passwd", b"root:x:0:0::/root:/bin/sh\nu:x:7:8::/:/bin/sh\n"),
            symlink(b"etc/mtab", b"/proc/mounts"),
        ),
    ]


def bomb(size: int) -> bytes:
    """A compressed tar of one file of zeros, made without having it in memory."""
    packer = zlib.compressobj(9, wbits=31)
    parts = [packer.compress(header(b"zeros", size=size))]
    piece = bytes(1 << 20)
    parts += [packer.compress(piece) for _ in range(size >> 20)]
    return b"".join([*parts, packer.compress(END), packer.flush()])


class Blobs:
    """A source of one layer: its bytes as they are, and what is said of them."""

    def __init__(self, blob: bytes, *, promised: str = "", size: int | None = None) -> None:
        self._blob = blob
        self._promised = promised or digest(blob)
        self._size = len(blob) if size is None else size

    def resolve(self) -> Resolved:
        raise AssertionError

    def open_layer(self, layer: LayerBlob, told: Any) -> Verified:
        return Verified(_Bytes(self._blob), "the blob", digest=self._promised, size=self._size, told=told)

    def close(self) -> None:
        pass


class _Bytes:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def readinto(self, view: memoryview, /) -> int:
        part = self._content[self._at : self._at + min(len(view), 1000)]
        view[: len(part)] = part
        self._at += len(part)
        return len(part)

    def close(self) -> None:
        pass
