"""One OCI layer into one of ours: what is checked on the way, and what is left after an error."""

from __future__ import annotations

import lzma
import os
import stat
import struct
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from layer_trees import check_files, check_fsck, describe_image, noise
from oci_layouts import Blobs, bomb, digest, directory, file, link, opaque, squeezed, symlink, tar, whiteout
from tar_bytes import header, pax

from dsec.store.build import LayerBuild
from dsec.store.oci import convert as convert_module
from dsec.store.oci.convert import convert
from dsec.store.oci.inherit import inherit
from dsec.store.oci.source import LayerBlob
from libdsec.protocol.errors import CapacityError, DSecError, IntegrityError, InvalidArgumentError

zstd = pytest.importorskip("backports.zstd")


def made(tmp_path: Path, plain: bytes, blob: bytes | None = None, **said: Any) -> LayerBuild:
    source = Blobs(squeezed(plain) if blob is None else blob, **said)
    return convert(source, LayerBlob("", 0, digest(plain)), str(tmp_path), "layer", lambda _: None)


PLAIN = tar(directory(b"d"), file(b"d/f", noise(50_000)))
SQUEEZED = squeezed(PLAIN)


@pytest.mark.parametrize("squeeze", [squeezed, zstd.compress, lzma.compress, bytes])
def test_whatever_a_layer_is_compressed_with(tmp_path: Path, squeeze: Any) -> None:
    build = made(tmp_path, PLAIN, squeeze(PLAIN))
    check_files(build)
    check_fsck(build)
    assert sorted(describe_image(build)) == [b"", b"d", b"d/f"]


def test_a_layer_without_an_end_mark_or_with_a_first_name_like_a_compressed_file(tmp_path: Path) -> None:
    build = made(tmp_path, file(b"BZh91AY", b"x"))
    assert sorted(describe_image(build)) == [b"", b"BZh91AY"]


@pytest.mark.parametrize(
    ("plain", "blob", "said", "error"),
    [
        (PLAIN, SQUEEZED, {"promised": digest(b"another")}, IntegrityError),
        (PLAIN, SQUEEZED, {"size": len(SQUEEZED) - 1}, IntegrityError),
        (PLAIN, SQUEEZED, {"size": len(SQUEEZED) + 1}, IntegrityError),
        (b"another", SQUEEZED, {}, IntegrityError),
        (PLAIN, squeezed(PLAIN + b"\0"), {}, IntegrityError),
        # what was damaged on the way is told as that, whatever the damage did to the tar
        (PLAIN, noise(300), {"promised": digest(SQUEEZED), "size": len(SQUEEZED)}, IntegrityError),
        (PLAIN, SQUEEZED[:-9] + b"123456789", {"promised": digest(SQUEEZED)}, IntegrityError),
        # what came as it was sent, and is no layer
        (PLAIN, SQUEEZED[:-9], {}, InvalidArgumentError),
        (PLAIN, SQUEEZED[:200], {}, InvalidArgumentError),
        (PLAIN, SQUEEZED + b"rubbish", {}, InvalidArgumentError),
        (noise(2000), noise(2000), {}, InvalidArgumentError),
        (tar(header(b"removed", kind=b"3")), None, {}, InvalidArgumentError),
        (tar(file(b"../escape")), None, {}, InvalidArgumentError),
        (tar(file(b"/absolute")), None, {}, InvalidArgumentError),
        (tar(symlink(b"l", b"/etc"), file(b"l/passwd")), None, {}, InvalidArgumentError),
        (tar(link(b"l", b"in-another-layer")), None, {}, InvalidArgumentError),
        (tar(file(b"f", uid=70_000)), None, {}, InvalidArgumentError),
        (tar(file(b".wh.")), None, {}, InvalidArgumentError),
        (tar(pax((b"SCHILY.xattr.user.x", bytes(300_000))), file(b"f")), None, {}, InvalidArgumentError),
    ],
)
def test_what_is_refused(
    tmp_path: Path, plain: bytes, blob: bytes | None, said: dict[str, Any], error: type[DSecError]
) -> None:
    with pytest.raises(error):
        made(tmp_path, plain, blob, **said)
    assert os.listdir(tmp_path) == []


def test_a_bomb(tmp_path: Path) -> None:
    blob = bomb(64 << 20)
    assert len(blob) < 100_000
    with pytest.raises(InvalidArgumentError, match="expands to more"):
        convert(Blobs(blob), LayerBlob("", 0, digest(b"")), str(tmp_path), "layer", lambda _: None, most=10 << 20)
    assert os.listdir(tmp_path) == []


def test_a_disk_that_fills_is_left_some_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = namedtuple("disk", "f_blocks f_bavail f_frsize")
    monkeypatch.setattr(convert_module.os, "statvfs", lambda _: disk(1 << 20, 50_000, 4096))
    with pytest.raises(CapacityError, match="MiB are left"):
        made(tmp_path, PLAIN)
    assert os.listdir(tmp_path) == []


def test_whoever_listens_can_end_it(tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def told(_: int) -> None:
        raise StopError

    with pytest.raises(StopError):
        convert(Blobs(SQUEEZED), LayerBlob("", 0, digest(PLAIN)), str(tmp_path), "layer", told)
    assert os.listdir(tmp_path) == []


def test_marks_for_an_overlay_are_not_taken_from_outside(tmp_path: Path) -> None:
    marked = pax((b"SCHILY.xattr.trusted.overlay.opaque", b"y"), (b"SCHILY.xattr.trusted.overlay.redirect", b"/etc"))
    build = made(tmp_path, tar(marked, directory(b"d")))
    assert describe_image(build)[b"d"][6] == ()


def build_in(tmp_path: Path, name: str, *members: bytes) -> LayerBuild:
    place = tmp_path / name
    place.mkdir()
    return made(place, tar(*members))


def test_directories_that_a_layer_does_not_describe(tmp_path: Path) -> None:
    acl = struct.pack("<I", 2) + struct.pack("<HHI", 1, 7, 0xFFFFFFFF) * 1
    lower = build_in(
        tmp_path,
        "lower",
        pax((b"SCHILY.xattr.user.a", b"1"), (b"SCHILY.xattr.system.posix_acl_default", acl)),
        directory(b"a", 0o1777, uid=5, gid=6),
        directory(b"a/b", 0o700),
        directory(b"gone"),
        directory(b"emptied", 0o711),
        symlink(b"l", b"/a/./b"),
        symlink(b"up", b"../../../a"),
    )
    middle = build_in(tmp_path, "middle", whiteout(b"gone"), directory(b"a"), opaque(b"a"), directory(b"a/c", 0o750))
    upper = build_in(
        tmp_path,
        "upper",
        *(file(name) for name in (b"a/c/f", b"a/b/f", b"gone/f", b"emptied/f", b"new/f")),
        opaque(b"emptied"),
        file(b"up/through"),
        whiteout(b"up/removed"),
    )
    assert upper.implied == (b"a", b"a/b", b"a/c", b"emptied", b"gone", b"new", b"up")
    changed = inherit(upper, [lower.metadata_path, middle.metadata_path], complete=False)
    check_files(changed)
    check_fsck(changed)
    found = describe_image(changed)
    assert {path: row[0] & 0o7777 for path, row in found.items() if stat.S_ISDIR(row[0]) and path} == {
        b"a": 0o755,
        b"a/b": 0o755,
        b"a/c": 0o750,
        b"emptied": 0o711,
        b"gone": 0o755,
        b"new": 0o755,
    }
    assert stat.S_ISCHR(found[b"a/removed"][0])
    assert b"a/through" in found
    assert b"up" not in found
    assert (b"trusted.overlay.opaque", b"y") in found[b"emptied"][6]
    again = inherit(changed, [], complete=False)
    assert again == changed


@pytest.mark.parametrize("target", [b"nowhere", b"f", b"l", b"../" * 20 + b"f"])
def test_names_below_what_is_no_directory_below(tmp_path: Path, target: bytes) -> None:
    lower = build_in(tmp_path, "lower", file(b"f"), symlink(b"l", target))
    upper = build_in(tmp_path, "upper", file(b"l/x"))
    with pytest.raises(InvalidArgumentError, match="leads to none"):
        inherit(upper, [lower.metadata_path], complete=True)


def test_one_name_by_two_ways(tmp_path: Path) -> None:
    lower = build_in(tmp_path, "lower", directory(b"d"), symlink(b"l", b"d"))
    upper = build_in(tmp_path, "upper", file(b"l/x", b"1"), file(b"d/x", b"2"))
    with pytest.raises(InvalidArgumentError, match="twice"):
        inherit(upper, [lower.metadata_path], complete=True)


@pytest.mark.parametrize("complete", [True, False])
def test_directories_that_only_remove_what_is_not_there(tmp_path: Path, complete: bool) -> None:
    lower = build_in(tmp_path, "lower", directory(b"there"), file(b"f"))
    removals = [whiteout(name) for name in (b"a/b/c", b"there/x", b"f/x")]
    upper = build_in(tmp_path, "upper", *removals, opaque(b"o"), opaque(b"there"), whiteout(b"kept/x"), file(b"kept/y"))
    if not complete:
        with pytest.raises(InvalidArgumentError, match="leads to none"):
            inherit(upper, [lower.metadata_path], complete=complete)
        return
    found = describe_image(inherit(upper, [lower.metadata_path], complete=complete))
    assert sorted(found) == [b"", b"kept", b"kept/x", b"kept/y", b"there", b"there/x"]


def test_what_a_layer_hides_it_does_not_inherit(tmp_path: Path) -> None:
    lower = build_in(tmp_path, "lower", *(directory(name, 0o700) for name in (b"a", b"a/b", b"a/b/c", b"d", b"d/e")))
    upper = build_in(tmp_path, "upper", opaque(b"a"), file(b"a/b/c/f"), whiteout(b"d"), file(b"d/e/f"))
    found = describe_image(inherit(upper, [lower.metadata_path], complete=True))
    modes = {path: row[0] & 0o777 for path, row in found.items() if stat.S_ISDIR(row[0]) and path}
    assert modes == {b"a": 0o700, b"a/b": 0o755, b"a/b/c": 0o755, b"d": 0o755, b"d/e": 0o755}


def test_directories_deep_in_others(tmp_path: Path) -> None:
    names = [b"/".join([b"d"] * depth) for depth in range(1, 1500)]
    lower = build_in(tmp_path, "lower", directory(b"d"), directory(b"d/d"))
    long = [pax((b"path", name)) + directory(b"x") for name in names]
    upper = build_in(tmp_path, "upper", *long, pax((b"path", names[-1] + b"/implied/f")) + file(b"x"))
    assert upper.implied == (names[-1] + b"/implied",)
    assert inherit(upper, [lower.metadata_path], complete=True) == upper
