"""Uppers as overlayfs leaves them, packed and mounted again over the same layers: what is seen is the same."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mounting import Mounted

from dsec.linux.mounts import umount
from dsec.store.pack.lower import Lower
from dsec.store.pack.matching import Matcher
from dsec.store.pack.upper import UpperSource
from dsec.store.sources import DirectorySource
from libdsec.protocol.errors import InvalidArgumentError
from libdsec.protocol.images import ScrubRule

pytestmark = pytest.mark.needs("root", "linux", "erofs-from-files", "overlay")

SHIFT = 0x5000_0000


@contextmanager
def overlay(lower: list[Path], upper: Path | None, at: Path) -> Iterator[Path]:
    at.mkdir()
    options = f"lowerdir={':'.join(map(str, reversed(lower)))},redirect_dir=off,metacopy=off,xino=on,index=off"
    if upper is not None:
        (upper / "upper").mkdir(parents=True)
        (upper / "work").mkdir()
        options += f",upperdir={upper}/upper,workdir={upper}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, at], check=True, timeout=30)
    try:
        yield at
    finally:
        umount(str(at))
        at.rmdir()


def seen(top: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(top.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path.relative_to(top))] = (oct(status.st_mode), status.st_uid, status.st_gid, content)
    return found


def source(upper: Path, shift: int, lower: list[str], *rules: str) -> UpperSource:
    matcher = Matcher([ScrubRule(rule) for rule in rules])
    return UpperSource(str(upper), shift, lower=Lower(lower), matcher=matcher, check=lambda: None)


def make_base(top: Path) -> None:
    for path in ("a/1", "a/2", "b/x/1", "b/x/2", "c", "d/1", "e/f/g/1", "tmp/old", "cache/old"):
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(path)


def change(top: Path) -> None:
    (top / "a/1").unlink()
    (top / "a/2").write_text("changed")
    subprocess.run(["rm", "-r", top / "b"], check=True, timeout=30)
    (top / "b").mkdir()
    (top / "b/new").write_text("new")
    (top / "c").unlink()
    (top / "c").mkdir()
    (top / "c/1").write_text("a directory now")
    subprocess.run(["rm", "-r", top / "d"], check=True, timeout=30)
    (top / "d").write_text("a file now")
    (top / "e/f/g/1").chmod(0o4711)
    (top / "n/m").mkdir(parents=True)
    os.link(top / "a/2", top / "n/m/other")
    (top / "tmp/old").unlink()
    (top / "tmp/new").write_text("residue")
    subprocess.run(["rm", "-r", top / "cache"], check=True, timeout=30)
    (top / "cache").mkdir()
    (top / "cache/new").write_text("residue")


def test_what_is_seen_over_the_same_layers_is_the_same(tmp_path: Path, mount: Mounted) -> None:
    (tmp_path / "base").mkdir()
    make_base(tmp_path / "base")
    with mount(DirectorySource(tmp_path / "base")) as (base, lower):
        with overlay([lower], tmp_path / "over", tmp_path / "merged") as merged:
            change(merged)
            expected = seen(merged)
        with (
            mount(source(tmp_path / "over/upper", 0, [base.metadata_path])) as (_, layer),
            overlay([lower, layer], None, tmp_path / "again") as again,
        ):
            assert seen(again) == expected
            assert (again / "n/m/other").stat().st_nlink == 2
        # what the rules leave out does not bring back what was removed
        packed = source(tmp_path / "over/upper", 0, [base.metadata_path], "tmp/*", "cache", "cache/*")
        with mount(packed) as (_, layer), overlay([lower, layer], None, tmp_path / "again") as again:
            left_out = {path for path in expected if path in ("tmp/new", "cache/new")}
            assert seen(again) == {path: what for path, what in expected.items() if path not in left_out}
            assert {row.path for row in packed.residue.rows()} == {"/tmp/new", "/cache"}


def test_ids_are_those_inside(tmp_path: Path, mount: Mounted) -> None:
    upper = tmp_path / "upper"
    upper.mkdir()
    for uid in (0, 1000, 65_535):
        (upper / str(uid)).touch()
        os.chown(upper / str(uid), SHIFT + uid, SHIFT + 65_535 - uid)
    acl = struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", *entry)
        for entry in ((1, 6, 2**32 - 1), (2, 5, SHIFT + 7), (4, 4, 2**32 - 1), (16, 5, 2**32 - 1), (32, 0, 2**32 - 1))
    )
    os.setxattr(upper / "0", "system.posix_acl_access", acl)
    capability = struct.pack("<IIIII", 0x03000001, 1 << 10, 0, 0, 0)
    os.setxattr(upper / "1000", "security.capability", capability + struct.pack("<I", SHIFT))
    os.setxattr(upper / "65535", "security.capability", capability + struct.pack("<I", SHIFT + 5))
    os.chown(upper, SHIFT, SHIFT)
    packed = source(upper, SHIFT, [])
    with mount(packed, remap=packed.remap) as (_, root):
        for uid in (0, 1000, 65_535):
            status = (root / str(uid)).stat()
            assert (status.st_uid, status.st_gid) == (uid, 65_535 - uid)
        assert os.getxattr(root / "0", "system.posix_acl_access") == acl.replace(
            struct.pack("<I", SHIFT + 7), struct.pack("<I", 7)
        )
        # for the sandbox's own root: for any root
        assert os.getxattr(root / "1000", "security.capability") == struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)
        assert os.getxattr(root / "65535", "security.capability") == capability + struct.pack("<I", 5)


@pytest.mark.parametrize("owner", [SHIFT - 1, SHIFT + 65_536, 0])
def test_an_id_of_somebody_else_is_named(tmp_path: Path, mount: Mounted, owner: int) -> None:
    upper = tmp_path / "upper"
    upper.mkdir()
    os.chown(upper, SHIFT, SHIFT)
    (upper / "odd").touch()
    os.chown(upper / "odd", owner, SHIFT)
    packed = source(upper, SHIFT, [])
    with pytest.raises(InvalidArgumentError) as caught, mount(packed, remap=packed.remap):
        pass
    assert caught.value.details["path"] == "/odd"


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("redirect", b"/etc"), ("metacopy", b""), ("opaque", b"x"), ("whiteout", b"y")],
)
def test_a_mark_that_was_switched_off_is_an_error(tmp_path: Path, mount: Mounted, attribute: str, value: bytes) -> None:
    upper = tmp_path / "upper"
    (upper / "d").mkdir(parents=True)
    os.setxattr(upper / "d", f"trusted.overlay.{attribute}", value)
    with pytest.raises(InvalidArgumentError, match=attribute), mount(source(upper, 0, [])):
        pass


def test_other_marks_and_devices_are_left_out(tmp_path: Path, mount: Mounted) -> None:
    upper = tmp_path / "upper"
    upper.mkdir()
    (upper / "f").touch()
    os.setxattr(upper / "f", "trusted.overlay.origin", b"\0\xfb")
    os.setxattr(upper / "f", "trusted.overlay.impure", b"y")
    os.setxattr(upper / "f", "user.overlay.opaque", b"y")
    os.mknod(upper / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    packed = source(upper, 0, [])
    with mount(packed) as (_, root):
        assert os.listdir(root) == ["f"]
        assert os.listxattr(root / "f") == ["user.overlay.opaque"]
    assert [row.path for row in packed.residue.rows()] == ["/null"]


def test_whiteouts_that_share_an_inode_are_each_one(tmp_path: Path, mount: Mounted) -> None:
    upper = tmp_path / "upper"
    (upper / "d").mkdir(parents=True)
    os.mknod(upper / "d/1", stat.S_IFCHR, 0)
    for name in ("d/2", "3"):
        os.link(upper / "d/1", upper / name)
    with mount(source(upper, 0, [], "**/1", "**/2", "3")) as (_, root):
        for name in ("d/1", "d/2", "3"):
            status = (root / name).lstat()
            assert (stat.S_IFMT(status.st_mode), status.st_rdev, status.st_nlink) == (stat.S_IFCHR, 0, 1)
