"""Random stacks of OCI layers, held against what another tool unpacks of them."""

from __future__ import annotations

import contextlib
import os
import random
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from oci_layouts import Blobs, digest, directory, file, opaque, squeezed, symlink, tar, whiteout, write_layout

from dsec.store.flatten import Flattened, walk
from dsec.store.layer_data import PlacedContent
from dsec.store.local import LocalStore
from dsec.store.oci.convert import convert
from dsec.store.oci.inherit import inherit
from dsec.store.oci.source import LayerBlob
from libdsec.protocol.errors import InvalidArgumentError
from remains import DISK_PREFIX

pytestmark = pytest.mark.needs("root", "umoci")

PATHS = b"a a/b a/b/c a/l d d/e d/e/f l l/b l/b/x l/y m m/z".split()
TARGETS = b"a /a d a/b ../d nowhere l ../a/b".split()
KINDS = ("directory", "directory", "file", "file", "symlink", "whiteout", "opaque", "replaced")

View = dict[bytes, tuple[Any, ...]]


@pytest.fixture
def disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=DISK_PREFIX, dir="/var/tmp") as path:
        yield Path(path)


def random_layer(draw: random.Random) -> bytes:
    """Names in any directories, most of which are not described."""
    members: list[bytes] = []
    blocked: list[bytes] = []
    for path in sorted(draw.sample(PATHS, draw.randint(1, 7))):
        if any(path.startswith(above + b"/") for above in blocked):
            continue  # no tool writes below what it has just written as something else
        kind = draw.choice(KINDS)
        if kind in ("whiteout", "replaced"):
            members.append(whiteout(path))
        if kind == "directory":
            members.append(directory(path, draw.choice((0o755, 0o700, 0o1777)), uid=draw.randrange(3)))
        elif kind in ("file", "replaced"):
            members.append(file(path, b"%d" % draw.randrange(1000), uid=draw.randrange(3)))
        elif kind == "symlink":
            members.append(symlink(path, draw.choice(TARGETS)))
        elif kind == "opaque":
            members.append(opaque(path))
        if kind not in ("directory", "opaque"):
            blocked.append(path)
    return tar(*members)


def ours(layers: Sequence[bytes], disk: Path) -> View:
    """What a sandbox of these would see."""
    found: View = {}
    with contextlib.closing(LocalStore(str(disk / "state"))) as store, store.taking() as taken:
        records = []
        for number, layer in enumerate(layers):
            out = disk / str(number)
            out.mkdir()
            build = convert(Blobs(squeezed(layer)), LayerBlob("", 0, digest(layer)), str(out), "layer", lambda _: None)
            records.append(taken.take(inherit(build, [each.metadata for each in records], complete=True)))
        stack = Flattened(records)
        for path, node in walk(stack.root):
            body = node.target if stat.S_ISLNK(node.mode) else None
            if stat.S_ISREG(node.mode):
                view = memoryview(bytearray(node.size))
                if node.size:
                    assert PlacedContent(stack.data, node).readinto(view) == node.size
                body = bytes(view)
            found[path] = (node.mode, node.uid, node.gid, body)
        stack.close()
    del found[b""]
    return found


def theirs(layers: Sequence[bytes], disk: Path) -> View | None:
    """None where it refuses."""
    write_layout(disk / "layout", layers)
    command = ["umoci", "unpack", "--image", f"{disk}/layout:v1", str(disk / "bundle")]
    if subprocess.run(command, capture_output=True, timeout=60, check=False).returncode:
        return None
    found: View = {}
    top = os.fsencode(disk / "bundle" / "rootfs")
    for place, directories, names in os.walk(top):
        for path in (os.path.join(place, name) for name in directories + names):
            status = os.lstat(path)
            body = os.readlink(path) if stat.S_ISLNK(status.st_mode) else None
            if stat.S_ISREG(status.st_mode):
                body = Path(os.fsdecode(path)).read_bytes()
            found[os.path.relpath(path, top)] = (status.st_mode, status.st_uid, status.st_gid, body)
    return found


def test_any_stack_shows_what_a_plain_unpack_gives(disk: Path) -> None:
    """Where both take it; names below what is no directory are refused here in any case."""
    compared = 0
    for seed in range(30):
        draw = random.Random(seed)
        layers = [random_layer(draw) for _ in range(draw.randint(2, 4))]
        work = disk / str(seed)
        work.mkdir()
        try:
            seen = ours(layers, work)
        except InvalidArgumentError:
            continue
        wanted = theirs(layers, work)
        if wanted is not None:
            assert seen == wanted, f"seed {seed}"
            compared += 1
    assert compared > 10
