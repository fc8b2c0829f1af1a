"""The store against the real kernel: layers mounted both ways, full disks, and a release builder that hangs."""

import asyncio
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.linux import mounts
from dsec.linux.uppers import make_upper
from dsec.store import release
from dsec.store.apt import AptSource
from dsec.store.compose import compose
from dsec.store.images import build_image
from dsec.store.local import LocalStore
from dsec.store.mounts import LayerMounts, mount_checked
from dsec.store.records import LayerRecord
from dsec.store.verify import check_whole
from libdsec.protocol.environment import BuildProgress, ImageBuildRequest
from libdsec.protocol.errors import CapacityError, IntegrityError, InvalidArgumentError
from libdsec.protocol.spec import SandboxSpec
from remains import DISK_PREFIX

pytestmark = pytest.mark.needs("root", "erofs")
WAYS = [
    pytest.param("files", marks=pytest.mark.needs("erofs-from-files")),
    pytest.param("loop", marks=pytest.mark.needs("loop")),
]


def nothing(progress: BuildProgress) -> None:
    pass


@pytest.fixture
def disk() -> Iterator[Path]:
    """On a disk: EROFS reads no files that lie in memory."""
    with tempfile.TemporaryDirectory(prefix=DISK_PREFIX, dir="/var/tmp") as path:
        yield Path(path)


def read(directory: int, name: str) -> bytes:
    with open(os.open(name, os.O_RDONLY, dir_fd=directory), "rb") as file:
        return file.read()


def fill(path: Path) -> None:
    """Until there is not one block left."""
    with open(path, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def tree_of(disk: Path, size: int) -> Path:
    tree = disk / "tree"
    tree.mkdir()
    (tree / "file").write_bytes(os.urandom(size))
    return tree


@pytest.mark.parametrize("way", WAYS)
def test_a_hundred_sandboxes_share_one_verified_mount(disk: Path, way: mounts.Method) -> None:
    store = LocalStore(str(disk / "state"))
    tree = tree_of(disk, 2_000_000)
    build_image(store, ImageBuildRequest("one:v1", f"dir:{tree}"), nothing)
    held: dict[str, int] = {}
    mounted = []

    def mount(layer: LayerRecord) -> int:
        mounted.append(layer.digest)
        return mounts.mount_erofs(layer.metadata, layer.data, label=layer.digest, method=way)

    async def hold(key: str, descriptor: int) -> None:
        held[key] = os.dup(descriptor)

    async def drop(key: str) -> None:
        os.close(held.pop(key))

    async def story() -> None:
        layers = LayerMounts(hold, drop, store.catalogue.layer, mount=mount)
        (layer,) = compose(store.catalogue, SandboxSpec("one:v1")).layers
        await asyncio.gather(*(layers.acquire(layer.digest) for _ in range(100)))
        assert mounted == [layer.digest]
        root = os.open(".", os.O_RDONLY, dir_fd=held[layer.digest])
        assert read(root, "file") == (tree / "file").read_bytes()
        os.close(root)
        for _ in range(100):
            await layers.release(layer.digest)
        assert await layers.forget(layer.digest)

    asyncio.run(story())
    assert held == {}
    store.close()


def test_a_layer_whose_files_changed_is_not_mounted(disk: Path) -> None:
    store = LocalStore(str(disk / "state"))
    build_image(store, ImageBuildRequest("one:v1", f"dir:{tree_of(disk, 10_000)}"), nothing)
    (layer,) = store.catalogue.get("one:v1").layers
    os.close(mount_checked(layer))
    with open(layer.metadata, "r+b") as file:
        file.seek(2000)
        file.write(b"changed")
    with pytest.raises(IntegrityError, match=layer.digest):
        mount_checked(layer)
    store.close()


@pytest.fixture
def small_disk(disk: Path) -> Iterator[Path]:
    upper = make_upper(str(disk), "small", 0, bytes=24 << 20)
    yield Path(upper.path_upper)
    upper.remove()


@pytest.mark.needs("mkfs.ext4", "loop")
def test_a_full_disk_is_said_and_leaves_nothing(disk: Path, small_disk: Path) -> None:
    store = LocalStore(str(small_disk / "state"))
    build_image(store, ImageBuildRequest("before:1", f"dir:{tree_of(disk, 1_000_000)}"), nothing)
    free = os.statvfs(small_disk).f_bavail
    (disk / "tree" / "large").write_bytes(os.urandom(40_000_000))
    with pytest.raises(CapacityError, match="room"):
        build_image(store, ImageBuildRequest("one:v1", f"dir:{disk / 'tree'}"), nothing)
    assert os.listdir(small_disk / "state" / "building") == []
    assert [image.ref for image in store.catalogue.list()] == ["before:1"]
    assert os.statvfs(small_disk).f_bavail >= free - 16
    check_whole(store.catalogue.get("before:1").layers[0])
    (disk / "tree" / "large").unlink()
    build_image(store, ImageBuildRequest("after:1", f"dir:{disk / 'tree'}"), nothing)
    store.close()


@pytest.mark.needs("mkfs.ext4", "loop")
def test_a_disk_without_a_byte_left_is_said_too(disk: Path, small_disk: Path) -> None:
    store = LocalStore(str(small_disk / "state"))
    tree = tree_of(disk, 100)
    with pytest.raises(OSError, match="No space left"):
        fill(small_disk / "fill")
    with pytest.raises(CapacityError):
        build_image(store, ImageBuildRequest("one:v1", f"dir:{tree}"), nothing)
    assert os.listdir(small_disk / "state" / "building") == []
    assert os.listdir(small_disk / "state" / "layers") == []
    os.unlink(small_disk / "fill")
    build_image(store, ImageBuildRequest("one:v1", f"dir:{tree}"), nothing)
    store.close()


SOURCE = AptSource(("file:/nowhere",), ("bookworm",), ("main",))
HANGING = "sleep 987654.321 & sleep 987654.321 & wait"


def hanging() -> list[str]:
    found = subprocess.run(["pgrep", "-f", "^sleep 987654.321"], capture_output=True, text=True)
    return found.stdout.split()


@pytest.mark.needs("mmdebstrap")
@pytest.mark.parametrize("said", ["", "head -c 2000 /dev/urandom; "])
def test_a_builder_that_hangs_is_ended_with_all_its_processes(
    disk: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    whole = release._command

    def command(*arguments: object) -> list[str]:
        made = whole(*arguments)  # type: ignore[arg-type]
        return [*made[: made.index("mmdebstrap")], "sh", "-c", said + HANGING]

    monkeypatch.setattr(release, "_command", command)
    store = LocalStore(str(disk / "state"))
    started: list[str] = []

    class Enough(Exception):
        pass

    def tick(progress: BuildProgress) -> None:
        started.extend(hanging())
        if started:
            raise Enough

    expected = InvalidArgumentError if said else Enough
    with pytest.raises(expected):
        build_image(store, ImageBuildRequest("one:v1", "release:bookworm", mirror="file:/nowhere"), tick)
    assert hanging() == []
    assert os.listdir(disk / "state" / "building") == []
    store.close()


ORPHANING = """
import os, sys
from dsec.store import release
from dsec.store.apt import AptSource

whole = release._command
release._command = lambda *a: [*(made := whole(*a))[: made.index("mmdebstrap")], "sh", "-c", sys.argv[2]]
with release.ReleaseStream("bookworm", [AptSource(("file:/nowhere",), ("bookworm",), ())], [], sys.argv[1],
                           lambda: print("reading", flush=True)) as stream:
    stream.read(1)
"""


@pytest.mark.needs("mmdebstrap")
def test_a_builder_does_not_outlive_the_process_that_reads_it(disk: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHANING, str(disk), HANGING], stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reading\n"
        assert len(hanging()) == 2
        reader.kill()
    deadline = time.monotonic() + 20
    while hanging() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert hanging() == []


@pytest.mark.needs("mmdebstrap")
def test_a_mirror_without_the_release_is_the_request_s_fault(disk: Path) -> None:
    store = LocalStore(str(disk / "state"))
    (disk / "mirror").mkdir()
    request = ImageBuildRequest("one:v1", "release:bookworm", mirror=f"file:{disk / 'mirror'}")
    with pytest.raises(InvalidArgumentError, match="Release file"):
        build_image(store, request, nothing)
    assert os.listdir(disk / "state" / "building") == []
    assert store.catalogue.list() == ()
    store.close()


@pytest.mark.needs("mmdebstrap")
def test_a_stream_left_early_leaves_no_process(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = functools.partial(release.ReleaseStream, "bookworm", [SOURCE], [], str(disk), lambda: None)
    stream = make()
    monkeypatch.setattr(stream, "_command", ["sh", "-c", "echo said >&2; echo read"])
    with stream:
        assert stream.read(100) == b"read\n"
        assert stream.read(100) == b""
        assert stream.failure() is None
    os.rmdir(disk / "tmp")
    os.unlink(disk / "bookworm.sources")
    failing = make()
    monkeypatch.setattr(failing, "_command", ["sh", "-c", "yes E: very much >&2 & sleep 0.1; kill $!; exit 7"])
    with failing:
        assert failing.read(100) == b""
        error = failing.failure()
    assert error is not None
    assert error.details["status"] == 7
    assert len(error.details["output"]) <= 4000
    assert len(str(error)) < 3000
