"""Images pulled from a real registry, held against what another tool unpacks."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from layer_trees import Description, describe_directory
from mounting import mounted, overlay
from oci_layouts import twenty_layers, write_layout

from dsec.linux.uppers import make_upper
from dsec.store.local import LocalStore
from dsec.store.oci.pull import Puller
from dsec.store.records import ImageRecord
from dsec.store.verify import check_whole
from libdsec.protocol.environment import BuildProgress
from libdsec.protocol.errors import CapacityError
from libdsec.protocol.images import ImagePullRequest, RegistryLogin
from real_registry import PASSWORD, USER, real_registry
from remains import DISK_PREFIX

zstd = pytest.importorskip("backports.zstd")

ROUNDING = 128 << 10
"""What a file system needs to describe a large file."""
LOGIN = RegistryLogin(USER, PASSWORD)

pytestmark = pytest.mark.needs("root", "erofs", "overlay", "umoci", "skopeo")


def nothing(progress: BuildProgress) -> None:
    pass


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    """On a disk: EROFS reads no files that lie in memory."""
    with tempfile.TemporaryDirectory(prefix=DISK_PREFIX, dir="/var/tmp") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def layout(disk: Path) -> Path:
    write_layout(disk / "layout", twenty_layers(), defaults={"Env": ["A=b"], "Cmd": ["sh"], "User": "7:8"})
    return disk / "layout"


@pytest.fixture(scope="module")
def unpacked(disk: Path, layout: Path) -> Description:
    """What another tool makes of it."""
    run("umoci", "unpack", "--image", f"{layout}:v1", str(disk / "bundle"))
    return described(disk / "bundle" / "rootfs")


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def described(root: Path) -> Description:
    """Without times of directories, which tools set or not, and without their sizes and links."""
    found: Description = {}
    for path, row in describe_directory(root).items():
        mode, uid, gid, mtime, links, rdev, xattrs, body, others = row
        xattrs = tuple(pair for pair in xattrs if not pair[0].startswith(b"trusted.overlay."))
        if stat.S_ISDIR(mode):
            mtime = links = 0
        found[path] = (mode, uid, gid, mtime // 10**9, links, rdev, xattrs, body, others)
    del found[b""]
    return found


def shown(image: ImageRecord, directory: Path) -> Description:
    """What a sandbox of it would see."""
    with ExitStack() as stack:
        roots = []
        for number, layer in enumerate(image.layers):
            build: Any = Layer(layer.metadata, layer.data)
            at = directory / f"at{number}"
            at.mkdir()
            stack.callback(at.rmdir)
            roots.append(stack.enter_context(mounted(build, at)))
        if len(roots) == 1:
            return described(roots[0])
        return described(stack.enter_context(overlay(roots[::-1], directory / "merged")))


class Layer:
    def __init__(self, metadata: str, data: str) -> None:
        self.metadata_path = metadata
        self.data_path = data


def without_count(row: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    return None if row is None else (*row[:4], *row[5:])


def differences(one: Description, other: Description) -> dict[bytes, tuple[Any, Any]]:
    return {path: (one.get(path), other.get(path)) for path in {*one, *other} if one.get(path) != other.get(path)}


@pytest.fixture
def store(disk: Path) -> Iterator[LocalStore]:
    with tempfile.TemporaryDirectory(dir=disk) as path:
        store = LocalStore(path)
        yield store
        assert os.listdir(Path(path) / "building") == []
        store.close()


@pytest.mark.parametrize("merge_bytes", [0, 1 << 20, 3 << 30])
def test_twenty_layers_show_what_a_plain_unpack_gives(
    disk: Path, layout: Path, unpacked: Description, store: LocalStore, merge_bytes: int
) -> None:
    Puller(store).pull(ImagePullRequest(f"oci:{layout}", "twenty:v1", merge_bytes=merge_bytes), nothing)
    image = store.catalogue.get("twenty:v1")
    assert len(image.layers) == {0: 19, 3 << 30: 1}.get(merge_bytes, len(image.layers))
    found = differences(shown(image, disk), unpacked)
    if merge_bytes < 3 << 30:
        # an overlay gives the count of the layer that a file is in, whatever layers above do to some of its names
        found = {path: pair for path, pair in found.items() if without_count(pair[0]) != without_count(pair[1])}
    assert found == {}


@pytest.mark.needs("docker-registry")
def test_the_same_layers_whatever_way_they_come(
    tmp_path: Path, disk: Path, layout: Path, unpacked: Description, store: LocalStore
) -> None:
    puller = Puller(store)
    first = puller.pull(ImagePullRequest(f"oci:{layout}:v1", "first:1", merge_bytes=0), nothing)
    write_layout(tmp_path / "zstd", twenty_layers(), squeeze=zstd.compress)
    run("skopeo", "copy", "-q", f"oci:{layout}:v1", f"oci-archive:{tmp_path}/o.tar:v1")
    run("skopeo", "copy", "-q", f"oci:{layout}:v1", f"docker-archive:{tmp_path}/d.tar:team/it:v1")
    (tmp_path / "registry").mkdir()
    sources = [f"oci:{tmp_path}/zstd", f"oci-archive:{tmp_path}/o.tar", f"docker-archive:{tmp_path}/d.tar"]
    with real_registry(tmp_path / "registry") as registry:
        registry.put(f"oci:{layout}:v1", "team/it:v1")
        for number, source in enumerate([*sources, f"docker://{registry.host}/team/it:v1"]):
            other = LocalStore(str(tmp_path / f"state{number}"))
            request = ImagePullRequest(source, "it:1", "base", LOGIN, plain_http="docker:" in source, merge_bytes=0)
            assert Puller(other).pull(request, nothing).layers == first.layers
            other.close()


@pytest.fixture
def small_store(disk: Path) -> Iterator[LocalStore]:
    """On a disk of its own."""
    upper = make_upper(str(disk), "small", 0, bytes=48 << 20)
    store = LocalStore(f"{upper.path_upper}/state")
    yield store
    store.close()
    upper.remove()


@pytest.mark.needs("mkfs.ext4", "loop")
def test_a_disk_that_fills_at_any_moment(layout: Path, small_store: LocalStore) -> None:
    """With more room each time, a pull says so and leaves nothing, or it succeeds; what is there stays whole."""
    store = small_store
    ballast = Path(store.state_dir) / "ballast"
    puller = Puller(store)
    puller.pull(ImagePullRequest(f"oci:{layout}", "kept:1", merge_bytes=0), nothing)
    kept = store.catalogue.get("kept:1")
    refused = 0
    building = os.path.join(store.state_dir, "building")
    for number, left in enumerate((0, 40_000, 300_000, 1 << 20, 2 << 20, 4 << 20, 6 << 20, 24 << 20)):
        with open(ballast, "wb") as file:
            room = os.statvfs(store.state_dir).f_bavail * 4096
            os.posix_fallocate(file.fileno(), 0, max(1, room - left - ROUNDING))
        try:
            # under another kind nothing of it is known, and the merged layer is written as well
            request = ImagePullRequest(f"oci:{layout}", f"more:{number}", "toolkit", merge_bytes=3 << 30)
            puller.pull(request, nothing)
        except CapacityError:
            refused += 1
        ballast.unlink()
        if store.catalogue.exists(f"more:{number}"):
            store.remove(f"more:{number}", lambda _: False)
        assert os.listdir(building) == []
        assert {f"sha256:{name}" for name in os.listdir(store.layers_dir)} == {layer.digest for layer in kept.layers}
    assert 0 < refused < 8
    for layer in kept.layers:
        check_whole(layer)
