"""Tars of every format, made by hand, by Python and by GNU tar, plain and compressed."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import lzma
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from layer_trees import (
    ACL,
    CAPABILITY_V2,
    Build,
    Description,
    Member,
    describe_directory,
    describe_image,
    describe_members,
    noise,
    trees,
)
from tar_bytes import END, header, member, padded, pax

from dsec.store.build import build_layer
from dsec.store.sources import DirectorySource, TarSource
from dsec.store.tree import OPAQUE_XATTR

REG = stat.S_IFREG | 0o644


def read(build: Build, tar: bytes, **options: object) -> Description:
    return describe_image(build(TarSource(io.BytesIO(tar), **options)))  # type: ignore[arg-type]


def test_every_type(build: Build) -> None:
    found = read(
        build,
        member(b"./", kind=b"5", mode=0o755, mtime=5)
        + member(b"./dir/", kind=b"5", mode=0o2750, uid=7, gid=8)
        + member(b"./dir/file", b"content", mtime=1_000_000_000)
        + member(b"old", b"v7", kind=b"\0", magic=bytes(8))
        + member(b"olddir/", kind=b"\0", magic=bytes(8), mode=0o755)
        + member(b"contiguous", b"c", kind=b"7")
        + member(b"sym", kind=b"2", link=b"../any/where")
        + member(b"hard", kind=b"1", link=b"./dir/file")
        + member(b"chr", kind=b"3", device=(1, 3), mode=0o666)
        + member(b"blk", kind=b"4", device=(8, 70_000))
        + member(b"fifo", kind=b"6")
        + member(b"label", kind=b"V")
        + END,
    )
    assert sorted(found) == sorted(b" dir dir/file old olddir contiguous sym hard chr blk fifo".split(b" "))
    assert found[b""][3] == 5_000_000_000
    assert found[b"dir"][:3] == (stat.S_IFDIR | 0o2750, 7, 8)
    assert found[b"dir/file"][4] == 2
    assert found[b"hard"][8] == (b"dir/file",)
    assert found[b"olddir"][0] == stat.S_IFDIR | 0o755
    assert found[b"sym"][7] == b"../any/where"
    assert found[b"chr"][5] == os.makedev(1, 3)
    assert found[b"blk"][5] == os.makedev(8, 70_000)
    assert found[b"contiguous"][7][0] == 1


def test_names_of_every_form(build: Build) -> None:
    long = b"/".join([b"d" * 90] * 4)
    found = read(
        build,
        member(b"name", prefix=b"pre/fix")
        + member(b"gnu", magic=b"ustar  \0", prefix=b"not a prefix")
        + member(b"././@LongLink", long + b"\0", kind=b"L")
        + member(long[:100])
        + member(b"././@LongLink", b"t" * 300 + b"\0", kind=b"K")
        + member(b"link", kind=b"2", link=b"t" * 100)
        + pax((b"path", b"p\xc3\xa4x/" + b"n" * 200), (b"linkpath", b"u" * 400))
        + member(b"short", kind=b"2", link=b"v")
        + member(b".//a/.//b/./c/")
        + END,
    )
    assert set(found) >= {b"pre/fix/name", b"gnu", long, b"p\xc3\xa4x/" + b"n" * 200, b"a/b/c"}
    assert found[b"link"][7] == b"t" * 300
    assert found[b"p\xc3\xa4x/" + b"n" * 200][7] == b"u" * 400


def test_numbers_of_every_form(build: Build) -> None:
    found = read(
        build,
        member(b"base256", uid=b"\x80" + bytes(5) + b"\x12\x34", mtime=b"\xff" * 11 + b"\xfe")
        + member(b"spaces", uid=b"   17 \0\0", gid=b"17\0junk\0")
        + member(b"empty", uid=b"\0" * 8)
        + pax((b"uid", b"65535"), (b"gid", b"3"), (b"mtime", b"1234567890.1234567891"))
        + member(b"pax")
        + pax((b"mtime", b"-1.5"))
        + member(b"negative")
        + pax((b"mtime", b"7."))
        + member(b"point")
        + END,
    )
    assert found[b"base256"][1:4] == (0x1234, 0, -2_000_000_000)
    assert found[b"spaces"][1:3] == (0o17, 0o17)
    assert found[b"empty"][1] == 0
    assert found[b"pax"][1:4] == (65_535, 3, 1_234_567_890_123_456_789)
    assert found[b"negative"][3] == -1_500_000_000
    assert found[b"point"][3] == 7_000_000_000


def test_global_records_hold_until_taken_back(build: Build) -> None:
    found = read(
        build,
        pax((b"uid", b"5"), (b"comment", b"x"), kind=b"g")
        + member(b"a")
        + pax((b"uid", b"6"))
        + member(b"b")
        + pax((b"uid", b""))
        + member(b"c", uid=7)
        + END,
    )
    assert [found[name][1] for name in (b"a", b"b", b"c")] == [5, 6, 7]


def test_attributes(build: Build) -> None:
    found = read(
        build,
        pax(
            (b"SCHILY.xattr.user.note", b"\0a=b\n"),
            (b"SCHILY.xattr.user.empty", b""),
            (b"SCHILY.xattr.user.a%3Db%25", b"1"),
            (b"SCHILY.xattr.security.capability", CAPABILITY_V2),
            (b"SCHILY.xattr.system.posix_acl_access", ACL),
            (b"SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
            (b"LIBARCHIVE.xattr.user.%C3%BC", base64.b64encode(b"libarchive").rstrip(b"=")),
            (b"LIBARCHIVE.xattr.user.note", base64.b64encode(b"said twice")),
            (b"RHT.security.selinux", b"label"),
        )
        + member(b"f")
        + END,
    )
    assert dict(found[b"f"][6]) == {
        b"user.note": b"\0a=b\n",
        b"user.empty": b"",
        b"user.a=b%": b"1",
        b"security.capability": CAPABILITY_V2,
        b"system.posix_acl_access": ACL,
        b"user.\xc3\xbc": b"libarchive",
        b"security.selinux": b"label",
    }


def test_the_last_member_of_a_name_wins(build: Build) -> None:
    found = read(build, member(b"a", b"1") + member(b"b", kind=b"1", link=b"a") + member(b"a", b"22") + END)
    assert (found[b"a"][7][0], found[b"b"][7][0]) == (2, 1)
    assert (found[b"a"][4], found[b"b"][4]) == (1, 1)


def _sparse_forms() -> dict[str, bytes]:
    """The file of `_SPARSE` in each form that knows holes."""
    stored = b"".join(piece for _, piece in _SPARSE)
    pairs = [(at, len(piece)) for at, piece in _SPARSE]
    old = b"".join(b"%011o\0%011o\0" % pair for pair in pairs[:4]).ljust(96, b"\0")
    more = b"".join(b"%011o\0%011o\0" % pair for pair in pairs[4:]).ljust(504, b"\0")
    old_tail = bytes(41) + old + b"\1" + b"%011o\0" % _SPARSE_SIZE
    real = b"%d" % _SPARSE_SIZE
    flat = [b"%d" % n for pair in pairs for n in pair]
    table = b"".join(n + b"\n" for n in [b"%d" % len(pairs), *flat])
    repeated = [
        item
        for at, length in pairs
        for item in ((b"GNU.sparse.offset", b"%d" % at), (b"GNU.sparse.numbytes", b"%d" % length))
    ]
    version_1 = [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.name", b"f")]
    return {
        "old": header(b"f", kind=b"S", size=len(stored), magic=b"ustar  \0", tail=old_tail)
        + more.ljust(512, b"\0")
        + padded(stored),
        "0.0": pax((b"GNU.sparse.size", real), (b"GNU.sparse.numblocks", b"6"), *repeated) + member(b"f", stored),
        "0.1": pax((b"GNU.sparse.size", real), (b"GNU.sparse.name", b"f"), (b"GNU.sparse.map", b",".join(flat)))
        + member(b"GNUSparseFile.0/f", stored),
        "1.0": pax(*version_1, (b"GNU.sparse.realsize", real)) + member(b"GNUSparseFile.0/f", padded(table) + stored),
    }


_SPARSE_SIZE = 3_000_001
_SPARSE = [
    (0, b"start"),
    (1000, noise(100)),
    (8192, noise(4096)),
    (500_000, noise(300_000)),
    (1_500_000, noise(7)),
    (2_999_991, b"0123456789"),
]


@pytest.mark.parametrize("form", ["old", "0.0", "0.1", "1.0"])
def test_sparse_members(build: Build, form: str) -> None:
    content = bytearray(_SPARSE_SIZE)
    for at, piece in _SPARSE:
        content[at : at + len(piece)] = piece
    whole = read(build, member(b"f", bytes(content)) + END)
    built = build(TarSource(io.BytesIO(_sparse_forms()[form] + member(b"next", b"n") + END)))
    found = describe_image(built)
    assert found[b"f"] == whole[b"f"]
    assert found[b"next"][7][0] == 1
    assert built.data_size < 600_000


def test_a_sparse_member_that_is_one_hole(build: Build) -> None:
    records = [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"%d" % (5 << 30))]
    tar = pax(*records, (b"GNU.sparse.name", b"f")) + member(b"x", padded(b"0\n")) + END
    built = build(TarSource(io.BytesIO(tar)), check=False)
    assert built.data_size == 4096
    assert built.content_bytes == 5 << 30


COMPRESSIONS = {
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
}


@pytest.mark.parametrize("form", sorted(COMPRESSIONS))
@pytest.mark.parametrize("shape", ["one", "members", "padding", "bytewise"])
def test_compressed(build: Build, form: str, shape: str) -> None:
    compress = COMPRESSIONS[form]
    tar = member(b"a", noise(700_000)) + member(b"zeros", bytes(900_000)) + END
    if shape == "members":
        data = compress(tar[:100_000]) + compress(tar[100_000:])
    else:
        data = compress(tar) + (bytes(1000) if shape == "padding" else b"")
    if shape == "bytewise":

        class Slow(io.BytesIO):
            """Gives a few bytes at a time, as a socket may."""

            def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
                return super().readinto(memoryview(buffer)[:1013])

            def read(self, size: int | None = -1, /) -> bytes:
                return super().read(1)

        source = TarSource(Slow(data))
    else:
        source = TarSource(io.BytesIO(data))
    assert describe_image(build(source)) == read(build, tar)


def test_zstandard(build: Build) -> None:
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    zstd = pytest.importorskip(name)
    tar = member(b"a", noise(700_000)) + END
    compressed = zstd.compress(tar[:70_000]) + zstd.compress(tar[70_000:])
    assert describe_image(build(TarSource(io.BytesIO(compressed)))) == read(build, tar)


def test_zstandard_without_its_package(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    from libdsec.protocol.errors import UnsupportedOperationError

    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    with pytest.raises(UnsupportedOperationError, match="Zstandard needs"):
        build(TarSource(io.BytesIO(b"\x28\xb5\x2f\xfd" + bytes(100))))


def test_whiteouts_of_container_images(build: Build) -> None:
    tar = (
        member(b"etc/.wh.gone")
        + member(b"opt/.wh..wh..opq")
        + member(b"opt/", kind=b"5", mode=0o700)
        + member(b".wh.replaced")
        + member(b"replaced/new", b"n")
        + member(b".wh..wh.plnk")
        + END
    )
    found = read(build, tar, whiteouts="oci")
    assert found[b"etc/gone"][0] == stat.S_IFCHR
    assert found[b"etc/gone"][5] == 0
    opaque = ((OPAQUE_XATTR, b"y"),)
    assert (found[b"opt"][0], found[b"opt"][6]) == (stat.S_IFDIR | 0o700, opaque)
    assert found[b"replaced"][6] == opaque
    assert not any(b".wh." in path for path in found)
    assert b"etc/.wh.gone" in read(build, tar)


def test_the_end_mark_may_be_waived(build: Build) -> None:
    assert b"a" in read(build, member(b"a", b"1"), end_mark=False)
    assert read(build, b"", end_mark=False).keys() == {b""}


def _python_tree(top: Path) -> None:
    (top / "d").mkdir()
    (top / "d" / "file").write_bytes(noise(50_000))
    (top / ("n" * 120)).write_bytes(b"long name")
    os.symlink("s" * 150, top / "long-target")
    os.link(top / "d" / "file", top / "hard")
    os.mkfifo(top / "fifo")
    for path in [*top.rglob("*"), top]:
        os.utime(path, (0, 1_500_000_000), follow_symlinks=False)


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_what_python_writes(build: Build, tmp_path: Path, form: str) -> None:
    top = tmp_path / "top"
    top.mkdir()
    _python_tree(top)
    formats = {"gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=formats[form]) as archive:
        archive.add(top, ".")
    assert read(build, stream.getvalue()) == describe_directory(top)


_GNU_FORMS = [
    ["--format=gnu"],
    ["--format=pax"],
    ["--format=posix", "--sparse", "--sparse-version=0.0"],
    ["--format=posix", "--sparse", "--sparse-version=0.1"],
    ["--format=posix", "--sparse", "--sparse-version=1.0"],
    ["--format=gnu", "--sparse"],
]


@pytest.mark.parametrize("options", _GNU_FORMS, ids=" ".join)
def test_what_gnu_tar_writes(build: Build, tmp_path: Path, options: list[str]) -> None:
    tar = shutil.which("tar")
    if tar is None or b"GNU tar" not in subprocess.run([tar, "--version"], capture_output=True, check=True).stdout:
        pytest.skip("no GNU tar")
    top = tmp_path / "top"
    top.mkdir()
    _python_tree(top)
    with open(top / "sparse", "wb") as file:
        file.truncate(20 << 20)
        for n in range(40):
            os.pwrite(file.fileno(), noise(3000, n), n * 300_000)
    if "gnu" not in options[0]:
        os.utime(top / "d", ns=(0, 1_234_567_890_123_456_789))
    os.utime(top / "sparse", (0, 1_500_000_000))
    os.utime(top, (0, 1_500_000_000))
    made = tmp_path / "top.tar"
    subprocess.run([tar, *options, "-C", str(top), "-cf", str(made), "."], check=True)
    with open(made, "rb") as file:
        built = build(TarSource(file))
        assert not file.closed
    assert describe_image(built) == describe_directory(top)
    assert built.data_size < 2 << 20


def test_tar_and_directory_agree(build: Build, tmp_path: Path) -> None:
    """Same order, same bytes: a tar in the order of the directory source gives the same layer."""
    top = tmp_path / "top"
    top.mkdir()
    _python_tree(top)
    by_directory = build(DirectorySource(top))
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for item in DirectorySource(top).entries():
            name = os.fsdecode(item.path)
            archive.add(top / name, "./" + name, recursive=False)
    by_tar = build(TarSource(io.BytesIO(stream.getvalue())))
    assert by_tar.layer_digest == by_directory.layer_digest


def _tar_of(members: list[Member]) -> bytes:
    """Everything in pax records, as a writer would that trusts no field."""
    kinds = {stat.S_IFREG: b"0", stat.S_IFLNK: b"2", stat.S_IFCHR: b"3", stat.S_IFBLK: b"4", stat.S_IFDIR: b"5"}
    parts: list[bytes] = []
    for item in members:
        path = (b"path", b"./" + item.path)
        if item.link is not None:
            parts.append(pax(path, (b"linkpath", b"./" + item.link)) + member(b"x", kind=b"1"))
            continue
        seconds, nanoseconds = divmod(abs(item.mtime_ns), 10**9)
        time = b"%s%d.%09d" % (b"-" if item.mtime_ns < 0 else b"", seconds, nanoseconds)
        records = [path, (b"mtime", time), (b"uid", b"%d" % item.uid), (b"gid", b"%d" % item.gid)]
        records += [(b"linkpath", item.target)] if item.target else []
        records += [(b"SCHILY.xattr." + name, value) for name, value in item.xattrs]
        device = (os.major(item.rdev), os.minor(item.rdev))
        kind = kinds.get(stat.S_IFMT(item.mode), b"6")
        parts.append(pax(*records) + member(b"x", item.content, kind=kind, mode=item.mode & 0o7777, device=device))
    return b"".join(parts) + END


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(trees())
def test_any_tree_comes_through_a_tar(tmp_path_factory: pytest.TempPathFactory, members: list[Member]) -> None:
    for item in members:
        if stat.S_ISSOCK(item.mode):
            item.mode = stat.S_IFIFO | stat.S_IMODE(item.mode)
    source = TarSource(io.BytesIO(_tar_of(members)))
    built = build_layer(source, tmp_path_factory.mktemp("tar"), "x")
    assert describe_image(built) == describe_members(members)
