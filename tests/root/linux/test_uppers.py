"""Writable directories: plain, with limits, hostile, and after a crash."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.linux import KernelError, btrfs, mounts
from dsec.linux.loops import open_loop
from dsec.linux.removal import Trash
from dsec.linux.uppers import TRASH, Upper, leftovers, make_upper, open_upper, remove_leftover
from libdsec.protocol.errors import InvalidArgumentError, UnsupportedOperationError

pytestmark = [pytest.mark.needs("root"), pytest.mark.usefixtures("nothing_left")]
OWNER = 0x7000_0000


def check_usable(upper: Upper) -> None:
    assert os.stat(upper.path_upper).st_uid == OWNER
    assert os.stat(upper.path_upper).st_gid == OWNER
    assert os.stat(upper.path_upper).st_mode & 0o777 == 0o755
    assert os.stat(upper.path_upper).st_dev == os.stat(upper.path_work).st_dev
    assert os.listdir(upper.path_upper) == os.listdir(upper.path_work) == []


def write_until_full(path: str, most: int) -> int:
    written = 0
    with open(path, "wb", buffering=0) as file:
        while written < most:
            try:
                written += file.write(bytes(256 * 1024))
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                break
    return written


def make_until_full(directory: str, most: int) -> int:
    for made in range(most):
        try:
            os.mknod(os.path.join(directory, str(made)))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return made
    return most


def test_a_plain_one_is_made_and_removed(disk: Path) -> None:
    upper = make_upper(str(disk), "one", OWNER)
    check_usable(upper)
    assert os.stat(upper.home).st_mode & 0o777 == 0o700
    assert leftovers(str(disk)) == ["one"]
    assert open_upper(str(disk), "one") == upper
    with pytest.raises(KernelError, match="mkdir") as caught:
        make_upper(str(disk), "one", OWNER)
    assert caught.value.errno == errno.EEXIST
    upper.remove()
    upper.remove()
    assert os.listdir(disk) == []
    with pytest.raises(KernelError, match="open upper"):
        open_upper(str(disk), "one")


def test_immutable_files_go_too(disk: Path) -> None:
    upper = make_upper(str(disk), "one", OWNER)
    below = os.path.join(upper.path_upper, "a", "b")
    os.makedirs(below)
    Path(below, "file").write_text("")
    for flag, path in (("+a", os.path.join(below, "file")), ("+i", below), ("+i", upper.path_upper)):
        if subprocess.run(["chattr", flag, path], stderr=subprocess.DEVNULL).returncode:
            pytest.skip("this file system has no immutable files")
    upper.remove()
    assert os.listdir(disk) == []


@pytest.mark.needs("mkfs.ext4", "loop")
def test_bytes_and_inodes_are_bounded(disk: Path) -> None:
    upper = make_upper(str(disk), "one", OWNER, bytes=16 << 20, inodes=500)
    check_usable(upper)
    file = os.path.join(upper.path_upper, "file")
    assert (12 << 20) < write_until_full(file, 32 << 20) <= (16 << 20)
    os.unlink(file)
    assert 450 < make_until_full(upper.path_upper, 1000) <= 500
    assert os.stat(os.path.join(upper.home, "image")).st_blocks * 512 < 32 << 20
    trash = Trash(str(disk / TRASH))
    upper.remove(trash)
    assert not os.path.exists(upper.home)
    trash.close()
    assert trash.pending() == 0


@pytest.mark.needs("mkfs.ext4", "loop")
@pytest.mark.parametrize("inodes", [16, 1000, 200_000])
def test_inodes_alone_are_bounded(disk: Path, inodes: int) -> None:
    upper = make_upper(str(disk), "one", OWNER, inodes=inodes)
    free = os.statvfs(upper.path_upper).f_ffree
    assert inodes * 0.8 - 16 <= free <= inodes
    upper.remove()
    assert os.listdir(disk) == []


@pytest.mark.needs("mkfs.ext4", "loop")
def test_limits_that_cannot_be_are_refused_and_leave_nothing(disk: Path) -> None:
    for limits in (
        *({"bytes": 4096}, {"inodes": 1}, {"bytes": 64 << 30, "inodes": 100}),
        *({"bytes": 1 << 50}, {"inodes": 10**12}, {"bytes": 64 << 20, "inodes": 10**9}),
    ):
        with pytest.raises(InvalidArgumentError, match=r"the least|at least|the disk itself|at most"):
            make_upper(str(disk), "one", OWNER, **limits)
    assert os.listdir(disk) == []


def test_without_mkfs_a_limit_says_what_to_install(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsec.linux.sized._MKFS", "mkfs.ext4-is-not-here")
    with pytest.raises(UnsupportedOperationError, match="install e2fsprogs"):
        make_upper(str(disk), "one", OWNER, bytes=16 << 20)
    assert os.listdir(disk) == []


@pytest.mark.needs("mkfs.ext4", "loop")
def test_an_overlay_on_it_and_its_removal_while_in_use(disk: Path) -> None:
    upper = make_upper(str(disk), "one", OWNER, bytes=16 << 20)
    for name in ("lower", "merged"):
        (disk / name).mkdir()
    options = [("lowerdir", str(disk / "lower")), ("upperdir", upper.path_upper), ("workdir", upper.path_work)]
    overlay = mounts.mount_detached("overlay", options, ["volatile"], 0, "an overlay")
    try:
        mounts.attach(overlay, str(disk / "merged"))
        (disk / "merged" / "file").write_text("written")
        upper.remove()
        assert not os.path.exists(upper.home)
        assert (disk / "merged" / "file").read_text() == "written"
    finally:
        os.close(overlay)
        mounts.umount(str(disk / "merged"))


@pytest.mark.needs("mkfs.ext4", "loop")
def test_what_a_crash_left_is_taken_over_or_removed(disk: Path) -> None:
    make_upper(str(disk), "plain", OWNER)
    make_upper(str(disk), "sized", OWNER, bytes=16 << 20)
    (disk / "half").mkdir()
    (disk / "half" / "image").write_bytes(b"")
    (disk / TRASH).mkdir()
    assert leftovers(str(disk)) == ["half", "plain", "sized"]
    Path(open_upper(str(disk), "sized").path_upper, "file").write_text("")
    for name in leftovers(str(disk)):
        remove_leftover(str(disk), name)
    assert os.listdir(disk) == [TRASH]


@pytest.fixture
def on_btrfs(disk: Path) -> Iterator[Path]:
    image, point = disk / "btrfs.image", disk / "btrfs"
    with open(image, "wb") as file:
        file.truncate(256 << 20)
    subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True, stdout=subprocess.DEVNULL)
    loop, device = open_loop(str(image), read_only=False)
    mount = mounts.mount_detached("btrfs", [("source", device)], [], 0, "a btrfs")
    os.close(loop)
    point.mkdir()
    mounts.attach(mount, str(point))
    os.close(mount)
    yield point
    mounts.umount(str(point))


@pytest.mark.needs("btrfs", "loop")
def test_on_btrfs_bytes_are_bounded_by_a_quota_group(on_btrfs: Path) -> None:
    with pytest.raises(UnsupportedOperationError, match="btrfs quota enable"):
        make_upper(str(on_btrfs), "one", OWNER, bytes=16 << 20)
    assert os.listdir(on_btrfs) == []
    subprocess.run(["btrfs", "quota", "enable", str(on_btrfs)], check=True)
    upper = make_upper(str(on_btrfs), "one", OWNER, bytes=16 << 20)
    check_usable(upper)
    assert btrfs.is_subvolume(os.path.dirname(upper.path_upper))
    assert write_until_full(os.path.join(upper.path_upper, "file"), 64 << 20) <= 17 << 20
    upper.remove()
    assert os.listdir(on_btrfs) == []
