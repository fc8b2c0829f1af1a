"""Layers as the kernel shows them: hashes, links, owners, modes, times, attributes, devices and targets."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import stat
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from layer_trees import (
    ACL,
    CAPABILITY_V2,
    CAPABILITY_V3,
    Member,
    describe_directory,
    describe_members,
    items,
    noise,
    trees,
)
from mounting import Mounted, mounted, overlay

from dsec.store.build import build_layer
from dsec.store.sources import (
    BytesContent,
    DirectorySource,
    Entry,
    HardLink,
    MemorySource,
    Opaque,
    TarSource,
    Whiteout,
)
from dsec.store.tree import Node

pytestmark = pytest.mark.needs("root", "erofs-from-files")

REG = stat.S_IFREG | 0o644
DIR = stat.S_IFDIR | 0o755


def _make_everything(top: Path) -> None:
    """A directory with one of everything."""
    (top / "deep" / "er").mkdir(parents=True)
    (top / "file").write_bytes(noise(123_456))
    (top / "deep" / "script").write_bytes(b"#!/bin/sh\n")
    (top / "deep" / "script").chmod(0o4755)
    (top / "empty").touch()
    (top / "deep" / "er" / "large").write_bytes(noise(3 << 20))
    os.symlink("../file", top / "deep" / "link")
    os.symlink("x" * 4000, top / "long-link")
    os.link(top / "file", top / "deep" / "same")
    os.link(top / "deep" / "link", top / "same-link", follow_symlinks=False)
    os.mknod(top / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(top / "whiteout", stat.S_IFCHR, 0)
    os.mknod(top / "disk", stat.S_IFBLK | 0o600, os.makedev(259, 70_000))
    os.mkfifo(top / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(top)
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
    os.chown(top / "deep", 1000, 65_535)
    os.chown(top / "deep" / "link", 7, 8, follow_symlinks=False)
    os.setxattr(top / "file", "user.note", b"\0\xff")
    os.setxattr(top / "file", "system.posix_acl_access", ACL)
    os.setxattr(top / "deep", "system.posix_acl_default", ACL)
    os.setxattr(top / "deep" / "script", "security.capability", CAPABILITY_V2)
    os.setxattr(top / "deep" / "link", "trusted.t", b"1", follow_symlinks=False)
    with open(top / "sparse", "wb") as file:
        file.truncate(40 << 20)
        os.pwrite(file.fileno(), noise(10_000), 20 << 20)
    os.utime(top / "file", ns=(0, 1_234_567_890_123_456_789))
    os.utime(top / "deep", ns=(0, -5_000_000_001))
    os.utime(top / "deep" / "link", ns=(0, 4_000_000_000_999_999_999), follow_symlinks=False)


def test_a_directory(tmp_path: Path, mount: Mounted) -> None:
    top = tmp_path / "top"
    top.mkdir()
    _make_everything(top)
    with mount(DirectorySource(top)) as (build, root):
        assert describe_directory(root) == describe_directory(top)
        assert build.data_size < 6 << 20
        usage = os.statvfs(root)
        assert usage.f_files - usage.f_ffree == build.inodes


@pytest.mark.parametrize("form", ["ustar", "gnu", "pax"])
def test_a_tar(tmp_path: Path, mount: Mounted, form: str) -> None:
    formats = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
    top = tmp_path / "top"
    top.mkdir()
    _make_everything(top)
    for name in ("socket", "long-link", "disk", "same-link"):
        # a tar has no sockets, ustar neither long targets nor such device numbers, Python's no links to links
        (top / name).unlink()
    for path in [top, *top.rglob("*")]:
        for name in os.listxattr(path, follow_symlinks=False):
            os.removexattr(path, name, follow_symlinks=False)
        if form != "pax":
            os.utime(path, (0, 1_000_000_000), follow_symlinks=False)
    tar = tmp_path / "top.tar"
    with tarfile.open(tar, "w", format=formats[form]) as archive:
        archive.add(top, "./")
    with open(tar, "rb") as file, mount(TarSource(file)) as (_, root):
        found, expected = describe_directory(root), describe_directory(top)
        if form == "pax":
            # Python's floating point times lose the last digits
            found = {k: (*v[:3], v[3] // 10**4, *v[4:]) for k, v in found.items()}
            expected = {k: (*v[:3], v[3] // 10**4, *v[4:]) for k, v in expected.items()}
            assert {k for k in found if abs(found[k][3] - expected[k][3]) > 1} == set()
            found = {k: (*v[:3], *v[4:]) for k, v in found.items()}
            expected = {k: (*v[:3], *v[4:]) for k, v in expected.items()}
        assert found == expected


def test_a_sparse_file_above_4_gib(tmp_path: Path, mount: Mounted) -> None:
    top = tmp_path / "top"
    top.mkdir()
    size = (5 << 30) + 123
    places = {0: b"start", (2 << 30) - 7: noise(5000), (4 << 30) + 4096: noise(300_000), size - 4: b"end!"}
    with open(top / "sparse", "wb") as file:
        file.truncate(size)
        for offset, data in places.items():
            os.pwrite(file.fileno(), data, offset)
    with mount(DirectorySource(top)) as (build, root):
        assert build.data_size <= 8 * build.chunk_size
        assert os.stat(build.data_path).st_blocks * 512 < 8 * build.chunk_size
        with open(root / "sparse", "rb") as file, open(top / "sparse", "rb") as source:
            assert os.fstat(file.fileno()).st_size == size
            for offset in [*places, (1 << 30), (3 << 30), (5 << 30) - 100_000]:
                start = max(0, offset - 300_000)
                assert os.pread(file.fileno(), 700_000, start) == os.pread(source.fileno(), 700_000, start)


def test_a_file_above_4_gib_with_far_data(mount: Mounted) -> None:
    """A size whose granule is more than a store chunk, and data beyond 32-bit byte addresses."""
    size = 20 << 30
    data = noise(100_000)
    content = BytesContent(data, size=size, extents=[((17 << 30) + 777, len(data))])
    with mount([Entry(b"far", Node(REG), content)]) as (_, root), open(root / "far", "rb") as file:
        assert os.fstat(file.fileno()).st_size == size
        around = os.pread(file.fileno(), 200_000, 17 << 30)
        assert around == (bytes(777) + data).ljust(200_000, b"\0")
        assert os.pread(file.fileno(), 4096, size - 4096) == bytes(4096)


def test_a_directory_of_100_000_entries(mount: Mounted) -> None:
    names = [b"entry-%06d" % n for n in range(100_000)]
    with mount([Entry(b"big/" + name, Node(REG)) for name in names]) as (_, root):
        big = os.fsencode(root) + b"/big"
        assert sorted(os.listdir(big)) == names
        for name in random.Random(1).sample(names, 500):
            assert os.lstat(big + b"/" + name).st_size == 0
        assert not os.path.lexists(big + b"/entry-100000")


def test_two_hundred_hard_links(mount: Mounted) -> None:
    content = noise(1_000_000)
    links = [HardLink(b"d/%d" % n, b"first") for n in range(199)]
    with mount([Entry(b"first", Node(REG), BytesContent(content)), *links]) as (_, root):
        status = os.stat(root / "first")
        assert status.st_nlink == 200
        for n in range(199):
            assert os.stat(root / "d" / str(n)).st_ino == status.st_ino
        assert hashlib.sha256((root / "d" / "7").read_bytes()).digest() == hashlib.sha256(content).digest()


def test_attributes(mount: Mounted) -> None:
    shared = (b"security.selinux", b"system_u:object_r:bin_t:s0\0")
    members = [
        Member(b"", DIR, xattrs=(shared,)),
        Member(b"a", REG, xattrs=(shared, (b"security.capability", CAPABILITY_V2), (b"user.x", b""))),
        Member(b"b", REG, xattrs=((b"system.posix_acl_access", ACL), (b"user.long", noise(65_535))), content=b"b"),
        Member(b"c", DIR, xattrs=((b"system.posix_acl_default", ACL), (b"trusted.t", b"\0\1"), shared)),
        Member(b"e", stat.S_IFLNK | 0o777, target=b"t" * 4000, xattrs=(shared, (b"trusted.u", noise(9000)))),
        Member(b"f", REG, xattrs=tuple((b"user.%03d" % n, b"v") for n in range(300)), content=b"f"),
        Member(b"g", REG, xattrs=tuple((b"user.%03d" % n, b"v") for n in range(300)), content=b"g"),
    ]
    with mount(items(members)) as (_, root):
        assert describe_directory(root) == describe_members(members)
    v3 = [Entry(b"v3", Node(REG, xattrs=((b"security.capability", CAPABILITY_V3),)))]
    with mount(v3) as (_, root):
        assert os.getxattr(root / "v3", "security.capability") == CAPABILITY_V3


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(members=trees())
def test_any_tree_mounts_as_it_was(members: list[Member]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        build = build_layer(MemorySource(items(members)), directory, "x")
        with mounted(build, Path(directory)) as root:
            assert describe_directory(root) == describe_members(members)


@pytest.mark.needs("overlay")
def test_whiteouts_and_opaque_directories_hide_lower_layers(tmp_path: Path, mount: Mounted) -> None:
    def file(path: bytes) -> Entry:
        return Entry(path, Node(REG), BytesContent(path))

    below = [file(b"etc/kept"), file(b"etc/gone"), file(b"opt/old/x"), file(b"srv/a"), file(b"dir/old")]
    above = [
        Whiteout(b"etc/gone"),
        Opaque(b"opt"),
        file(b"opt/new"),
        Whiteout(b"srv"),
        Whiteout(b"dir"),
        file(b"dir/new"),
        Entry(b"etc/kept", Node(REG, xattrs=((b"trusted.overlay.metacopy", b""),)), BytesContent(b"not redirected")),
    ]
    with (
        mount(below) as (_, lower),
        mount(above) as (_, upper),
        overlay([upper, lower], tmp_path / "merged") as merged,
    ):
        found = {str(path.relative_to(merged)) for path in merged.rglob("*") if path.is_file()}
        assert found == {"etc/kept", "opt/new", "dir/new"}
        assert not (merged / "srv").exists()
        assert (merged / "etc" / "kept").read_bytes() == b"not redirected"


def test_a_deep_directory(tmp_path: Path, mount: Mounted) -> None:
    """Deeper than descriptors are held open, up to the longest path."""
    top = tmp_path / "top"
    top.mkdir()
    try:
        here = os.open(top, os.O_RDONLY)
        for level in range(1300):
            os.mkdir("dd", dir_fd=here)
            with open(os.open(f"f{level}", os.O_WRONLY | os.O_CREAT, dir_fd=here), "wb") as file:
                file.write(b"%d" % level)
            below = os.open("dd", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(here)
        # fsck.erofs itself ends with an error at this depth
        with mount(DirectorySource(top), fsck=False) as (build, root):
            assert build.inodes == 1 + 2 * 1300
            path = "/".join(["dd"] * 1000)
            assert (root / path / "f1000").read_bytes() == b"1000"
    finally:
        # too deep for shutil, and for pytest's own clean-up
        subprocess.run(["rm", "-rf", str(top)], check=True)
