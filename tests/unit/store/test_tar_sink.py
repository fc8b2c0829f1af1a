"""Trees as tars: read back they are the same layers, and other programs' readers agree."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tarfile
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from layer_stacks import items as stack_items
from layer_stacks import layer_plans, take
from layer_trees import ACL, CAPABILITY_V2, noise

from dsec.store.build import build_layer
from dsec.store.local import LocalStore, Taken
from dsec.store.records import LayerRecord
from dsec.store.sinks.tar import tar_pieces, write_tar
from dsec.store.sources import BytesContent, Entry, HardLink, MemorySource, Opaque, SourceItem, TarSource, Whiteout
from dsec.store.sources.layer import LayerSource
from dsec.store.tree import Node
from libdsec.protocol.errors import InvalidArgumentError

REG = stat.S_IFREG | 0o640
DIR = stat.S_IFDIR | 0o755


def as_tar(layer: LayerRecord, whiteouts: Literal["plain", "oci"] = "oci") -> bytes:
    tar = io.BytesIO()
    write_tar(LayerSource(layer), tar.write, whiteouts=whiteouts)
    return tar.getvalue()


def from_tar(store: LocalStore, taken: Taken, tar: bytes) -> LayerRecord:
    with store.build_directory() as directory:
        return taken.take(build_layer(TarSource(io.BytesIO(tar), whiteouts="oci"), directory, "layer"))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    layer_plans(kinds=("file", "directory", "link", "symlink", "whiteout", "opaque", "device", "fifo", "hole"), most=20)
)
def test_a_layer_as_a_tar_is_the_same_layer(
    store: LocalStore, taken: Taken, plan: list[tuple[bytes, str, int]]
) -> None:
    # what hides nothing new is not told again, and what has no data is last: once through is the layer as it is told
    layer = from_tar(store, taken, as_tar(take(store, taken, stack_items(plan))))
    tar = as_tar(layer)
    assert from_tar(store, taken, tar).digest == layer.digest
    assert as_tar(layer) == tar


def everything() -> list[SourceItem]:
    long = b"n" * 255
    return [
        Entry(b"", Node(DIR, uid=3, mtime_ns=5_000_000_000)),
        Entry(b"d", Node(stat.S_IFDIR | 0o1777, mtime_ns=-1)),
        Entry(long, Node(DIR)),
        Entry(
            long + b"/" + long,
            Node(REG, uid=65_535, gid=65_535, mtime_ns=1_234_567_890_123_456_789),
            BytesContent(b"1"),
        ),
        HardLink(b"d/hard", long + b"/" + long),
        Entry(b"d/old", Node(REG, mtime_ns=-5_000_000_001)),
        Entry(b"d/far", Node(REG, mtime_ns=(1 << 40) * 10**9)),
        Entry(b"d/\xff\n=", Node(REG, xattrs=((b"user.a=b%3D", b"\n\0\xff"), (b"system.posix_acl_access", ACL)))),
        Entry(b"d/caps", Node(REG | 0o4111, xattrs=((b"security.capability", CAPABILITY_V2), (b"user.empty", b"")))),
        Entry(b"d/link", Node(stat.S_IFLNK | 0o777, target=b"t" * 4000)),
        HardLink(b"d/link2", b"d/link"),
        Entry(b"d/null", Node(stat.S_IFCHR | 0o666, rdev=os.makedev(1, 3))),
        Entry(b"d/disk", Node(stat.S_IFBLK | 0o600, rdev=os.makedev(4095, 0xFFFFF))),
        Entry(b"d/pipe", Node(stat.S_IFIFO | 0o600)),
        Entry(b"d/large", Node(REG), BytesContent(noise(1_000_001))),
        Opaque(b"d"),
        Whiteout(b"gone"),
    ]


def test_everything_a_tar_can_hold(store: LocalStore, taken: Taken) -> None:
    layer = take(store, taken, everything())
    assert from_tar(store, taken, as_tar(layer)).digest == layer.digest


def test_another_reader_agrees(store: LocalStore, taken: Taken) -> None:
    layer = take(store, taken, everything())
    with tarfile.open(fileobj=io.BytesIO(as_tar(layer)), mode="r:") as tar:
        members = {os.fsencode(member.name): member for member in tar}
        large = tar.extractfile("d/large")
        assert large is not None
        assert large.read() == noise(1_000_001)
    assert members[b"d/.wh..wh..opq"].isreg()
    assert members[b".wh.gone"].size == 0
    assert members[b"."].uid == 3
    assert members[b"d"].mode == 0o1777
    assert members[b"d/link"].linkname == "t" * 4000
    assert members[b"d/hard"].islnk() or members[b"n" * 255 + b"/" + b"n" * 255].islnk()
    assert (members[b"d/disk"].devmajor, members[b"d/disk"].devminor) == (4095, 0xFFFFF)
    assert members[b"d/far"].mtime == 1 << 40
    assert members[b"d/old"].mtime == -5.000000001


def test_a_plain_tar_has_no_whiteouts_and_any_name(store: LocalStore, taken: Taken) -> None:
    layer = take(store, taken, [Entry(b".wh.x", Node(REG)), Whiteout(b"y"), Opaque(b"d")])
    with tarfile.open(fileobj=io.BytesIO(as_tar(layer, "plain"))) as tar:
        assert tar.getnames() == [".", ".wh.x", "d"]
    with pytest.raises(InvalidArgumentError, match=r"/\.wh\.x"):
        as_tar(layer)


def test_sockets_and_their_other_names_are_left_out() -> None:
    socket = Entry(b"s", Node(stat.S_IFSOCK | 0o600))
    pieces = tar_pieces(MemorySource([socket, HardLink(b"t", b"s"), Entry(b"f", Node(REG))]))
    with tarfile.open(fileobj=io.BytesIO(b"".join(bytes(piece) for piece in pieces))) as tar:
        assert tar.getnames() == ["f"]


class _Zeros:
    """More than the eleven octal digits of a header can tell."""

    size = (8 << 30) + 5
    extents = ((0, 1),)

    def readinto(self, view: memoryview) -> int:
        view[:1] = b"x"
        return 1


def test_a_file_above_eight_gibibytes() -> None:
    pieces = tar_pieces(MemorySource([Entry(b"f", Node(REG), _Zeros())]), whiteouts="oci")
    head = b""
    length = 0
    for piece in pieces:
        head += bytes(piece[:4096]) if len(head) < 4096 else b""
        length += len(piece)
    with tarfile.open(fileobj=io.BytesIO(head.ljust(10240, b"\0")), ignore_zeros=True) as tar:
        member = tar.next()
    assert member is not None
    assert (member.name, member.size) == ("f", _Zeros.size)
    assert length == 512 * 3 + _Zeros.size + -_Zeros.size % 512 + 1024


def test_large_holes_are_left_out_of_a_plain_tar(store: LocalStore, taken: Taken, tmp_path: Path) -> None:
    size = (9 << 30) + 7
    extents = [(1 << 20, 5000), (5 << 30, 1 << 20), (size - 7, 7)]
    data = noise(5000) + noise(1 << 20) + b"the end"
    sparse = Entry(b"d/sparse", Node(REG, mtime_ns=7), BytesContent(data, size=size, extents=extents))
    empty = Entry(b"hole", Node(REG), BytesContent(b"", size=4 << 20, extents=()))
    layer = take(store, taken, [sparse, HardLink(b"link", b"d/sparse"), empty])
    tar = as_tar(layer, "plain")
    assert len(tar) < 3 << 20
    assert from_tar(store, taken, tar).digest == layer.digest
    (tmp_path / "tar").write_bytes(tar)
    subprocess.run(["tar", "-xf", "tar", "--numeric-owner", "--no-same-owner"], cwd=tmp_path, check=True, timeout=60)
    assert os.stat(tmp_path / "link").st_ino == os.stat(tmp_path / "d" / "sparse").st_ino
    assert os.stat(tmp_path / "hole").st_size == 4 << 20
    with open(tmp_path / "link", "rb") as file:
        assert os.fstat(file.fileno()).st_size == size
        assert b"".join(os.pread(file.fileno(), length, offset) for offset, length in extents) == data
        assert os.pread(file.fileno(), 4096, 6 << 30) == bytes(4096)


def test_content_that_ends_early_is_an_error() -> None:
    content = BytesContent(b"abc", size=5)
    with pytest.raises(InvalidArgumentError, match="/f: ends 2 bytes"):
        write_tar(MemorySource([Entry(b"f", Node(REG), content)]), lambda piece: None)
