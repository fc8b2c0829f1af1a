"""What a full pull of the burst's images fetches, as a registry has it: one base and a workspace for each image, as
`tar.gz`, with the OCI documents about them, in a directory that `dsec.testing.http_store` gives out.

The workspaces' archives have equal contents, since whoever pulls all of them has the same work with equal bytes as with
others; a number in the head of each gives it a digest of its own.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dsec.store.oci.manifest import OCI_CONFIG, OCI_LAYER_GZIP, OCI_MANIFEST

from . import crowd

REPOSITORY = "burst/image"
LEVEL = 1
_TIME_AT = 4
"""Of a gzip file: four bytes that nobody needs (RFC 1952)."""


class Blobs(msgspec.Struct, frozen=True):
    base: str
    """Digests, `sha256:` and 64 hexadecimal digits."""
    workspaces: tuple[str, ...]
    needed_bytes: int
    """Of the working set in each."""


def path_of(blob: str) -> str:
    """Of a blob of that digest, below the server's root."""
    return f"v2/{REPOSITORY}/blobs/{blob}"


def write(lower: Path, files: crowd.Files, count: int, root: Path) -> Blobs:
    """Base and workspaces of `count` images, whose tags are their numbers from 0 on."""
    scratch = root / "archive.tar.gz"
    (root / path_of("")).mkdir(parents=True)
    (root / f"v2/{REPOSITORY}/manifests").mkdir()
    with tarfile.open(scratch, "w:gz", compresslevel=LEVEL) as target:
        target.add(os.fspath(lower), ".")
    base_id, base = _plain_digest(scratch), _blob(root, scratch.read_bytes())
    with tarfile.open(scratch, "w:gz", compresslevel=LEVEL) as target:
        needed = crowd.add_workspace(target, files, 0).needed_bytes
    workspace_id, content = _plain_digest(scratch), bytearray(scratch.read_bytes())
    scratch.unlink()
    rootfs = {"type": "layers", "diff_ids": [base_id, workspace_id]}
    config = _described(OCI_CONFIG, root, {"architecture": "amd64", "os": "linux", "rootfs": rootfs})
    workspaces = []
    for number in range(count):
        content[_TIME_AT : _TIME_AT + 4] = number.to_bytes(4, "little")
        workspaces.append(_blob(root, content))
        layers = [
            {"mediaType": OCI_LAYER_GZIP, "digest": digest, "size": os.path.getsize(root / path_of(digest))}
            for digest in (base, workspaces[-1])
        ]
        manifest = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": layers}
        (root / f"v2/{REPOSITORY}/manifests/{number}").write_text(json.dumps(manifest))
    return Blobs(base, tuple(workspaces), needed)


def _described(kind: str, root: Path, document: Mapping[str, Any]) -> dict[str, object]:
    content = json.dumps(document).encode()
    return {"mediaType": kind, "digest": _blob(root, content), "size": len(content)}


def _blob(root: Path, content: bytes | bytearray) -> str:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    (root / path_of(digest)).write_bytes(content)
    return digest


def _plain_digest(archive: Path) -> str:
    with gzip.open(archive) as source:
        return f"sha256:{hashlib.file_digest(source, 'sha256').hexdigest()}"
