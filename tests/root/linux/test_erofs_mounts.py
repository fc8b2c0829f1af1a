"""EROFS images as detached mounts, by both ways."""

import os
from pathlib import Path

import pytest

from dsec.linux import KernelError, mounts
from dsec.linux.specimen import empty_erofs
from dsec.store.build import build_layer
from dsec.store.sources import DirectorySource

WAYS = [
    pytest.param("files", marks=pytest.mark.needs("erofs-from-files")),
    pytest.param("loop", marks=pytest.mark.needs("loop")),
]
pytestmark = [pytest.mark.needs("root", "erofs"), pytest.mark.usefixtures("nothing_left")]


def _open(mount: int) -> int:
    return os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=mount)


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_reads_as_its_source(disk: Path, way: mounts.Method) -> None:
    tree = disk / "tree"
    tree.mkdir()
    content = os.urandom(3_000_000)
    (tree / "file").write_bytes(content)
    (tree / "empty").write_bytes(b"")
    layer = build_layer(DirectorySource(tree), disk, "layer")
    mount = mounts.mount_erofs(layer.metadata_path, layer.data_path, method=way)
    root = _open(mount)
    try:
        assert sorted(os.listdir(root)) == ["empty", "file"]
        with open(os.open("file", os.O_RDONLY, dir_fd=root), "rb") as file:
            assert file.read() == content
        with pytest.raises(OSError, match="Read-only"):
            os.mkdir("new", dir_fd=root)
    finally:
        os.close(root)
        os.close(mount)


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_without_any_data_mounts_too(disk: Path, way: mounts.Method) -> None:
    tree = disk / "tree"
    (tree / "directory").mkdir(parents=True)
    layer = build_layer(DirectorySource(tree), disk, "layer")
    mount = mounts.mount_erofs(layer.metadata_path, layer.data_path, method=way)
    root = _open(mount)
    try:
        assert os.listdir(root) == ["directory"]
    finally:
        os.close(root)
        os.close(mount)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_no_image_is_named_with_its_layer(disk: Path, way: mounts.Method) -> None:
    (disk / "metadata").write_bytes(b"nothing".ljust(8192, b"\0"))
    with pytest.raises(KernelError, match=r"sha256:abc \(.*/metadata\)"):
        mounts.mount_erofs(str(disk / "metadata"), None, label="sha256:abc", method=way)


def test_the_way_is_found_by_trying(disk: Path) -> None:
    image = disk / "image"
    image.write_bytes(empty_erofs())
    way = mounts.erofs_method(str(disk))
    os.close(mounts.mount_erofs(str(image), None))
    os.close(mounts.mount_erofs(str(image), None, method=way))


@pytest.mark.needs("loop")
def test_files_in_memory_are_mounted_through_loop_devices(disk: Path) -> None:
    mount = mounts.mount_detached("tmpfs", [], [], 0, "a tmpfs")
    os.mkdir(disk / "memory")
    mounts.attach(mount, str(disk / "memory"))
    os.close(mount)
    try:
        (disk / "memory" / "image").write_bytes(empty_erofs())
        assert mounts.erofs_method(str(disk / "memory")) == "loop"
        os.close(mounts.mount_erofs(str(disk / "memory" / "image"), None))
    finally:
        assert mounts.detach_if_mounted(str(disk / "memory"))
    assert not mounts.detach_if_mounted(str(disk / "memory"))
    assert not mounts.detach_if_mounted(str(disk / "nothing"))


def test_two_mounts_of_one_layer_are_apart(disk: Path) -> None:
    (disk / "image").write_bytes(empty_erofs())
    first = mounts.mount_erofs(str(disk / "image"), None)
    second = mounts.mount_erofs(str(disk / "image"), None)
    os.close(first)
    root = _open(second)
    os.close(second)
    assert os.listdir(root) == []
    os.close(root)
