"""Pushed images, held against what another tool unpacks of them; and full disks."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layer_stacks import Plan, layer_plans, take
from layer_stacks import items as stack_items
from layer_trees import ACL, CAPABILITY_V2, Description, describe_directory, noise
from mounting import layer_mounted, overlay

from dsec.linux.uppers import make_upper
from dsec.store.build import build_layer
from dsec.store.local import LocalStore
from dsec.store.merge import merge_layers
from dsec.store.oci.push import push_image
from dsec.store.records import ImageRecord, LayerRecord
from dsec.store.sources import BytesContent, DirectorySource, Entry, HardLink, Opaque, SourceItem, Whiteout
from dsec.store.tree import Node
from dsec.testing.tiny_root import make_tiny_root
from libdsec.protocol.environment import ImageConfig
from libdsec.protocol.errors import CapacityError
from libdsec.protocol.images import ImagePushRequest
from remains import DISK_PREFIX

pytestmark = pytest.mark.needs("root", "erofs", "overlay")

REG = stat.S_IFREG | 0o644
DIR = stat.S_IFDIR | 0o755
CRUN = "mount -t tmpfs none /sys/fs/cgroup && exec crun --cgroup-manager=disabled run $0"
"""It refuses machines with control groups of both versions as long as it sees them."""

KINDS = ("file", "file", "directory", "directory", "whiteout", "opaque", "link", "symlink", "device", "fifo", "hole")


@pytest.fixture
def disk() -> Iterator[Path]:
    """On a disk: EROFS reads no files that lie in memory."""
    with tempfile.TemporaryDirectory(prefix=DISK_PREFIX, dir="/var/tmp") as path:
        yield Path(path)


@pytest.fixture
def store(disk: Path) -> Iterator[LocalStore]:
    store = LocalStore(str(disk / "state"))
    yield store
    assert os.listdir(disk / "state" / "building") == []
    store.close()


def run(*command: str, directory: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=directory)
    assert done.returncode == 0, done.stderr
    return done.stdout


def push(store: LocalStore, ref: str, destination: str) -> None:
    push_image(store, ImagePushRequest(ref, destination), lambda news: None)


def publish(store: LocalStore, ref: str, layers: Sequence[Sequence[SourceItem]], **config: object) -> ImageRecord:
    with store.taking() as taken:
        records = tuple(take(store, taken, layer) for layer in layers)
        return store.publish_image(ImageRecord(ref, "base", records, ImageConfig(**config), 1e9))  # type: ignore[arg-type]


def shown(layers: Sequence[LayerRecord], directory: Path) -> Description:
    with ExitStack() as stack:
        lowers = [
            stack.enter_context(layer_mounted(layer, directory / f"lower{number}"))
            for number, layer in enumerate(layers)
        ]
        return described(stack.enter_context(overlay(lowers[::-1], directory / "overlay")))


def described(root: Path) -> Description:
    """Without link counts, which are of layers. umoci sets no attributes of links and devices, and none that begin
    with `trusted.overlay.` were written."""
    found = {}
    for path, (*head, _, rdev, xattrs, body, others) in describe_directory(root).items():
        xattrs = tuple(pair for pair in xattrs if not pair[0].startswith(b"trusted.overlay."))
        found[path] = (*head, rdev, xattrs, body, others)
    return found


def unpacked(image: str, bundle: Path) -> Description:
    run("umoci", "unpack", "--image", image, str(bundle))
    return described(bundle / "rootfs")


@pytest.mark.needs("umoci")
def test_what_another_tool_unpacks_is_what_we_mount(store: LocalStore, disk: Path) -> None:
    attributes = ((b"user.a", b"\0\n"), (b"system.posix_acl_access", ACL))
    base: list[SourceItem] = [
        *(
            Entry(b"", Node(stat.S_IFDIR | 0o711, uid=4, mtime_ns=10**18)),
            Entry(b"d", Node(DIR, gid=9, mtime_ns=5 * 10**9)),
        ),
        *(Entry(b"d/%03d" % n, Node(REG, uid=n), BytesContent(b"%d" % n)) for n in range(50)),
        Entry(
            b"many",
            Node(stat.S_IFREG | 0o750, xattrs=attributes, mtime_ns=1_234_567_890_123_456_789),
            BytesContent(noise(300_000)),
        ),
        *(HardLink(b"d/link%03d" % n, b"many") for n in range(200)),
        Entry(b"caps", Node(stat.S_IFREG | 0o4755, xattrs=((b"security.capability", CAPABILITY_V2),))),
        *(Entry(b"o", Node(DIR)), Entry(b"o/below", Node(REG)), Entry(b"t", Node(DIR)), Entry(b"t/in", Node(REG))),
        Entry(b"null", Node(stat.S_IFCHR | 0o666, rdev=os.makedev(1, 3))),
        Entry(b"sym", Node(stat.S_IFLNK | 0o777, uid=7, mtime_ns=10**17, target=b"t" * 200)),
    ]
    upper: list[SourceItem] = [
        *(Whiteout(b"d/007"), Entry(b"d/008", Node(REG), BytesContent(b"new")), Whiteout(b"d/link000")),
        *(Entry(b"d/link001", Node(REG), BytesContent(b"its own")), Opaque(b"o"), Entry(b"o/above", Node(REG))),
        *(Whiteout(b"t"), Entry(b"null", Node(DIR)), Entry(b"null/in", Node(REG)), Whiteout(b"caps")),
    ]
    image = publish(store, "app:1", [base, upper])
    push(store, "app:1", f"oci:{disk}/layout:v")
    assert unpacked(f"{disk}/layout:v", disk / "bundle") == shown(image.layers, disk)


@pytest.mark.needs("umoci")
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(layer_plans(kinds=KINDS), min_size=1, max_size=3))
def test_any_stack_unpacks_to_what_we_mount(plans: list[Plan]) -> None:
    with tempfile.TemporaryDirectory(prefix=DISK_PREFIX, dir="/var/tmp") as path:
        disk = Path(path)
        store = LocalStore(str(disk / "state"))
        root: list[SourceItem] = [Entry(b"", Node(DIR))]
        image = publish(store, "app:1", [root, *([*root, *stack_items(plan)] for plan in plans)])
        push(store, "app:1", f"oci:{disk}/layout:v")
        assert unpacked(f"{disk}/layout:v", disk / "bundle") == shown(image.layers, disk)
        store.close()


@pytest.mark.needs("umoci", "crun")
def test_a_pushed_image_runs_elsewhere(store: LocalStore, disk: Path) -> None:
    make_tiny_root(str(disk / "root"))
    (disk / "root" / "etc" / "gone").write_text("from below")
    with store.taking() as taken, store.build_directory() as directory:
        base = taken.take(build_layer(DirectorySource(disk / "root"), directory, "layer"))
        upper: list[SourceItem] = [
            *(Entry(b"etc", Node(DIR)), Whiteout(b"etc/gone"), Opaque(b"home"), Entry(b"app", Node(DIR, uid=1000))),
            Entry(b"app/hello", Node(REG), BytesContent(b"packed\n")),
        ]
        layers = (base, take(store, taken, upper))
        config = ImageConfig(
            {"GREETING": "hello", "PATH": "/bin"},
            "/app",
            "user",
            entrypoint=("/bin/sh", "-c"),
            cmd=("echo $GREETING; cat hello; ls /home; cat /etc/gone || id -u",),
        )
        store.publish_image(ImageRecord("app:1", "workspace", layers, config, 1e9))
    push(store, "app:1", f"oci:{disk}/layout:v")
    run("umoci", "unpack", "--image", f"{disk}/layout:v", str(disk / "bundle"))
    document = json.loads((disk / "bundle" / "config.json").read_text())
    document["process"]["terminal"] = False
    # what a test may not count on: cgroups of its own
    document["linux"].pop("resources", None)
    (disk / "bundle" / "config.json").write_text(json.dumps(document))
    out = run("unshare", "--mount", "sh", "-c", CRUN, f"dsec-test-{os.getpid()}", directory=disk / "bundle")
    assert out == "hello\npacked\n1000\n"


@pytest.fixture
def small_disk(disk: Path) -> Iterator[Path]:
    upper = make_upper(str(disk), "small", 0, bytes=24 << 20)
    yield Path(upper.path_upper)
    upper.remove()


@pytest.mark.needs("mkfs.ext4", "loop")
@pytest.mark.parametrize("destination", ["oci:{}/made", "oci:{}/there:v", "oci-archive:{}/archive.tar"])
def test_a_full_disk_leaves_nothing_of_a_push(
    store: LocalStore, disk: Path, small_disk: Path, destination: str
) -> None:
    publish(store, "small:1", [[Entry(b"f", Node(REG), BytesContent(b"x"))]])
    publish(
        store,
        "large:1",
        [
            [Entry(b"g", Node(REG), BytesContent(noise(5 << 20)))],
            [Entry(b"h", Node(REG), BytesContent(noise(40 << 20)))],
        ],
    )
    push(store, "small:1", f"oci:{small_disk}/there:one")
    before = everything_in(small_disk)
    with pytest.raises(CapacityError, match=str(small_disk)):
        push(store, "large:1", destination.format(small_disk))
    assert everything_in(small_disk) == before
    push(store, "small:1", f"oci:{small_disk}/there:two")


def everything_in(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in sorted(directory.rglob("*"))}


@pytest.mark.needs("mkfs.ext4", "loop")
def test_a_full_disk_leaves_nothing_of_a_merge(small_disk: Path) -> None:
    store = LocalStore(str(small_disk / "state"))
    with store.taking() as taken:
        layers = [take(store, taken, [Entry(name, Node(REG), BytesContent(noise(6 << 20)))]) for name in (b"a", b"b")]
        layers.append(take(store, taken, [Entry(b"c", Node(REG), BytesContent(b"x"))]))
        with pytest.raises(CapacityError, match="room"):
            merge_layers(store, layers, 1 << 40, lambda news: None, taken)
        assert os.listdir(small_disk / "state" / "building") == []
        assert len(os.listdir(small_disk / "state" / "layers")) == 3
        (merged,) = merge_layers(store, layers[1:], 1 << 40, lambda news: None, taken)
        assert merged.files == 2
    assert os.listdir(small_disk / "state" / "layers") == []
    store.close()
