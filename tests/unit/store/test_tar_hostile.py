"""Tars that are damaged or want out. Each is refused by a typed error that names the member, and leaves nothing."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_trees import noise
from tar_bytes import END, header, member, padded, pax, record

from dsec.store.build import build_layer
from dsec.store.sources import TarSource
from dsec.store.sources import tar as tar_module
from libdsec.protocol.errors import DSecError, FileOperationError, InvalidArgumentError


def refused(tmp_path: Path, tar: bytes, why: str, named: str | None = None) -> None:
    with pytest.raises(InvalidArgumentError, match=why) as caught:
        build_layer(TarSource(io.BytesIO(tar)), tmp_path, "x")
    if named is not None:
        assert named in (caught.value.details.get("member"), caught.value.details.get("path"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("tar", "why", "named"),
    [
        (member(b"/etc/passwd"), "absolute name", "/etc/passwd"),
        (member(b"//etc"), "absolute name", "//etc"),
        (member(b"../x"), r"'\.\.'", "../x"),
        (member(b"a/../../x"), r"'\.\.'", "a/../../x"),
        (member(b"a/.."), r"'\.\.'", "a/.."),
        (member(b".."), r"'\.\.'", ".."),
        (member(b"./../x"), r"'\.\.'", "./../x"),
        (pax((b"path", b"/abs")) + member(b"ok"), "absolute name", "/abs"),
        (member(b"l", kind=b"2", link=b"/etc") + member(b"l/x"), "which is a symbolic link", "/l/x"),
        (member(b"l", kind=b"2", link=b".") + member(b"l/l/x"), "which is a symbolic link", "/l/l/x"),
        (member(b"h", kind=b"1", link=b"/etc/passwd"), "absolute link target", "h"),
        (member(b"h", kind=b"1", link=b"../x"), r"link target with '\.\.'", "h"),
        (member(b"h", kind=b"1", link=b"missing"), "not in the tree", "/h"),
        (member(b"h", kind=b"1", link=b"h"), "not in the tree", "/h"),
        (member(b"d/", kind=b"5") + member(b"h", kind=b"1", link=b"d"), "is a directory", "/h"),
        (member(b"l", kind=b"2", link=b"d") + member(b"h", kind=b"1", link=b"l/x"), "not in the tree", "/h"),
        (member(b".", b"root?"), "root must be a directory", "/"),
        (member(b""), "root must be a directory", "/"),
        (member(b"f") + member(b"f/x"), "not a directory", "/f/x"),
        (pax((b"path", b"a\0b")) + member(b"x"), "not a name", None),
        (pax((b"path", b"n" * 256)) + member(b"x"), "name of 256 bytes", None),
        (pax((b"path", b"d/" * 5000 + b"x")) + member(b"x"), "name of 10001 bytes", None),
        (pax((b"path", b"/".join([b"d" * 99] * 60))) + member(b"x"), "path of 5999 bytes", None),
        (member(b"l", kind=b"2"), "link target of 0 bytes", "/l"),
        (pax((b"linkpath", b"t" * 5000)) + member(b"l", kind=b"2"), "link target of 5000", "/l"),
        (member(b"m", kind=b"M"), "type b'M'", "m"),
        (member(b"u", uid=65_536), "owner id 65536", "/u"),
        (pax((b"gid", b"4294967294")) + member(b"u"), "group id", "/u"),
        (pax((b"SCHILY.xattr.user.x", b"v" * 70_000)) + member(b"x"), "70000 bytes", "/x"),
        (pax((b"SCHILY.xattr.strange", b"v")) + member(b"x"), "cannot be kept", "/x"),
        (pax((b"LIBARCHIVE.xattr.user.x", b"!!!")) + member(b"x"), "not base64", "x"),
        (pax((b"SCHILY.acl.access", b"user::rwx")) + member(b"x"), "as text", "x"),
    ],
)
def test_a_member_is_refused(tmp_path: Path, tar: bytes, why: str, named: str | None) -> None:
    refused(tmp_path, member(b"before", b"x" * 1000) + tar + END, why, named)


@pytest.mark.parametrize(
    ("tar", "why"),
    [
        (header(b"x", checksum=1) + END, "wrong header checksum"),
        (header(b"x", uid=b"9999999\0") + END, "uid that is not a number"),
        (header(b"x", mtime=b"-1         \0") + END, "mtime that is not a number"),
        (header(b"x", uid=b"1_0\0\0\0\0\0") + END, "uid that is not a number"),
        (noise(512) + END, "header"),
        (b"x" * 100, "ends without an end mark"),
        (b"", "ends without an end mark"),
        (header(b"x", kind=b"L", size=1 << 30), "extended header of"),
        (header(b"x", kind=b"x", size=1 << 30), "extended header of"),
        (header(b"x", kind=b"x", size=600) + bytes(512), "cut off"),
        (member(b"x", b"no length", kind=b"x") + END, "pax record without a length"),
        (member(b"x", b"99 a=b\n", kind=b"x") + END, "does not fit its length"),
        (member(b"x", b"0 a=b\n", kind=b"x") + END, "does not fit its length"),
        (member(b"x", b"6 a=b\n" + b"5 ab\n", kind=b"x") + END, "does not fit its length"),
        (member(b"x", record(b"path", b"y")[:-1] + b"x", kind=b"x") + END, "does not fit its length"),
        (pax((b"path", b"y")) + END, "extended header without a member"),
        (pax((b"path", b"y")), "ends without an end mark"),
        (pax((b"uid", b"-1")) + member(b"x") + END, "uid that is not a number"),
        (pax((b"mtime", b"1e9")) + member(b"x") + END, "mtime that is not a time"),
        (pax((b"size", b"99999999999999")) + member(b"x", b"1") + END, "the most is"),
        (pax((b"size", b"9999999999")) + member(b"x", b"1") + END, "cut off"),
        (pax((b"mtime", b"9" * 20)) + member(b"x") + END, "out of range"),
    ],
)
def test_a_damaged_tar_is_refused(tmp_path: Path, tar: bytes, why: str) -> None:
    refused(tmp_path, member(b"before", b"x" * 1000) + tar, why)
    if tar:
        refused(tmp_path, tar, "member|/x: ")


def _listed(size: bytes, pairs: bytes, stored: int) -> bytes:
    return pax((b"GNU.sparse.size", size), (b"GNU.sparse.map", pairs)) + member(b"s", b"x" * stored) + END


def _sparse(records: list[tuple[bytes, bytes]], data: bytes) -> bytes:
    return pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), *records) + member(b"s", data) + END


@pytest.mark.parametrize(
    ("tar", "why"),
    [
        (_listed(b"10", b"0,5,3,5", 10), "not fit the file"),
        (_listed(b"10", b"0,50", 50), "not fit the file"),
        (_listed(b"99", b"0,5", 6), "stored data"),
        (_listed(b"99", b"0,5,7", 5), "damaged sparse"),
        (_listed(b"99", b"0,-5", 5), "not a number"),
        (_sparse([(b"GNU.sparse.realsize", b"9")], padded(b"x\n")), "sensible length"),
        (_sparse([(b"GNU.sparse.realsize", b"9")], padded(b"9999999\n")), "sensible length"),
        (_sparse([(b"GNU.sparse.realsize", b"9")], padded(b"1\n0\nz\n")), "not a number"),
        (_sparse([(b"GNU.sparse.realsize", b"9")], b"1" * 2048), "damaged sparse map"),
        (_sparse([(b"GNU.sparse.realsize", b"9")], padded(b"200\n")), "."),
        (_sparse([(b"GNU.sparse.realsize", b"1" * 30)], padded(b"0\n")), "not a number"),
        (header(b"s", kind=b"S", size=0, magic=b"ustar  \0", tail=bytes(137) + b"\1"), "cut off"),
    ],
)
def test_a_damaged_sparse_member_is_refused(tmp_path: Path, tar: bytes, why: str) -> None:
    refused(tmp_path, tar, why)


def test_a_cut_tar_names_what_was_cut(tmp_path: Path) -> None:
    tar = member(b"whole", noise(1000)) + member(b"cut", noise(300_000)) + END
    refused(tmp_path, tar[:-200_000], "cut off", "cut")
    refused(tmp_path, tar[: 512 + 700], "cut off", "whole")
    refused(tmp_path, tar[:-1024], "ends without an end mark", "cut")
    refused(tmp_path, tar[: -1024 - 100], "cut off", "cut")


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_damaged_compression_names_the_member(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    tar = member(b"whole", noise(1000)) + member(b"cut", noise(300_000)) + END
    data = compress(tar)
    refused(tmp_path, data[: len(data) // 2], "compressed stream ends early", "cut")
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 0xFF
    refused(tmp_path, bytes(damaged), "damaged|checksum|cut off|header")
    # the check sum is at the very end, behind the last member
    damaged = bytearray(data)
    damaged[-6] ^= 0xFF
    refused(tmp_path, bytes(damaged), "compressed and damaged", "cut")
    refused(tmp_path, data + b"trailing", "compressed and damaged|stream ends early", "cut")


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress])
def test_an_input_that_fails_is_told_from_a_damaged_one(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    class Failing(io.BytesIO):
        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            if self.tell() > 200_000:
                raise OSError(errno.EIO, "Input/output error")
            return super().readinto(memoryview(buffer)[:100_000])

    with pytest.raises(FileOperationError, match="Input/output") as caught:
        build_layer(TarSource(Failing(compress(member(b"a", noise(900_000)) + END))), tmp_path, "x")
    assert caught.value.details["errno"] == errno.EIO
    assert os.listdir(tmp_path) == []


def test_what_follows_the_end_mark_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_module, "MAX_TRAILER_BYTES", 1 << 20)
    refused(tmp_path, member(b"a") + END + bytes(3 << 20), "behind the end mark")


def test_a_small_input_that_expands_costs_no_memory(tmp_path: Path) -> None:
    import tracemalloc

    data = gzip.compress(header(b"bomb", size=200 << 20) + bytes(200 << 20) + END)
    tracemalloc.start()
    try:
        built = build_layer(TarSource(io.BytesIO(data)), tmp_path, "x")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert built.data_size == 4096
    assert peak < 24 << 20


_GOOD = (
    member(b"d/", kind=b"5")
    + pax((b"path", b"d/file"), (b"SCHILY.xattr.user.x", b"y"))
    + member(b"f", noise(700))
    + member(b"d/hard", kind=b"1", link=b"d/file")
    + pax((b"GNU.sparse.size", b"9000"), (b"GNU.sparse.map", b"100,5,8000,5"))
    + member(b"s", b"0123456789")
    + member(b"././@LongLink", b"long/" * 30 + b"x\0", kind=b"L")
    + member(b"long", b"x" * 20)
    + END
)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["flip", "cut", "swap", "zero"]))
def test_any_damage_is_typed_or_harmless(tmp_path_factory: pytest.TempPathFactory, seed: int, kind: str) -> None:
    chance = random.Random(seed)
    tar = bytearray(_GOOD)
    if kind == "cut":
        del tar[chance.randrange(len(tar)) :]
    elif kind == "flip":
        for _ in range(chance.randrange(1, 4)):
            tar[chance.randrange(len(tar))] = chance.randrange(256)
    else:
        one, other = (512 * chance.randrange(len(tar) // 512) for _ in range(2))
        tar[one : one + 512] = tar[other : other + 512] if kind == "swap" else bytes(512)
    out = tmp_path_factory.getbasetemp() / "damage"
    out.mkdir(exist_ok=True)
    try:
        built = build_layer(TarSource(io.BytesIO(bytes(tar))), out, "x")
    except DSecError:
        assert os.listdir(out) == []
    else:
        os.unlink(built.metadata_path)
        os.unlink(built.data_path)
