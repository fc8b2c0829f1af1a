"""Layers appear whole or not at all, and go when no image has them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from stocked import stock, write_tree

from dsec.store.build import build_layer
from dsec.store.images import build_image
from dsec.store.local import LocalStore
from dsec.store.sources import Entry, MemorySource
from dsec.store.tree import Node
from dsec.store.verify import check_for_mount, check_whole, read_layer_file
from libdsec.protocol.environment import ImageBuildRequest
from libdsec.protocol.errors import AlreadyExistsError, ConflictError, ImageNotFoundError, IntegrityError


def layers_of(store: LocalStore) -> list[str]:
    return sorted(os.listdir(store.layers_dir))


def nothing_half_made(store: LocalStore) -> bool:
    return os.listdir(os.path.join(store.state_dir, "building")) == []


def test_a_layer_is_where_its_digest_says(store: LocalStore, tmp_path: Path) -> None:
    image = stock(store, tmp_path / "trees", "one:v1", {"file": "content", "directory": None})
    layer = image.layers[0]
    assert layers_of(store) == [layer.digest.removeprefix("sha256:")]
    assert sorted(os.listdir(layer.directory)) == ["data.erofs", "layer.json", "metadata.erofs"]
    assert os.path.getsize(layer.metadata) == layer.metadata_bytes
    assert os.path.getsize(layer.data) == layer.data_bytes
    assert layer.files == 1
    assert store.catalogue.get("one:v1") == image
    assert read_layer_file(layer).digest == layer.digest
    assert nothing_half_made(store)


@pytest.mark.parametrize("alone", [True, False])
def test_a_build_directory_with_nothing_else_in_it_becomes_the_layers(store: LocalStore, alone: bool) -> None:
    for _ in range(2):
        with store.build_directory() as directory, store.taking() as taken:
            build = build_layer(MemorySource([Entry(b"a", Node(0o100644))]), directory, "layer")
            inode = os.stat(directory).st_ino
            layer = taken.take(build, directory if alone else None)
            assert (os.stat(layer.directory).st_ino == inode) is alone
            assert sorted(os.listdir(layer.directory)) == ["data.erofs", "layer.json", "metadata.erofs"]
            assert os.stat(layer.directory).st_mode & 0o777 == 0o755
            check_whole(layer)
            again = taken.take(build, directory)  # it is there already
            assert again == layer
        assert nothing_half_made(store)
        assert layers_of(store) == []


def test_the_same_content_is_kept_once_and_goes_with_its_last_image(store: LocalStore, tmp_path: Path) -> None:
    one = stock(store, tmp_path / "trees", "one:v1", {"file": "content"})
    two = stock(store, tmp_path / "trees", "two:v1", {"file": "content"})
    other = stock(store, tmp_path / "trees", "other:v1", {"file": "other"})
    assert one.layers == two.layers
    assert len(layers_of(store)) == 2
    store.remove("one:v1", lambda _: False)
    assert len(layers_of(store)) == 2
    store.remove("two:v1", lambda _: False)
    assert layers_of(store) == [other.layers[0].digest.removeprefix("sha256:")]
    assert nothing_half_made(store)


def test_what_is_in_use_is_not_removed(store: LocalStore, tmp_path: Path) -> None:
    image = stock(store, tmp_path / "trees", "one:v1", {"file": "content"})
    used = {image.layers[0].digest}
    with pytest.raises(ConflictError, match="in use"):
        store.remove("one:v1", used.__contains__)
    assert store.catalogue.get("one:v1") == image
    assert len(layers_of(store)) == 1
    used.clear()
    store.remove("one:v1", used.__contains__)
    with pytest.raises(ImageNotFoundError):
        store.remove("one:v1", used.__contains__)


def test_nothing_is_taken_from_a_layer_that_somebody_keeps(store: LocalStore, tmp_path: Path) -> None:
    digest = stock(store, tmp_path / "trees", "one:v1", {"file": "content"}).layers[0].digest
    with store.keeping("one:v1") as image:
        assert store.unless_kept(digest, lambda: 7) is None
        store.remove("one:v1", lambda _: False)
        check_whole(image.layers[0])
    assert layers_of(store) == []
    assert store.unless_kept(digest, lambda: 7) == 7


def test_a_taken_name_leaves_no_layer_behind(store: LocalStore, tmp_path: Path) -> None:
    kept = stock(store, tmp_path / "trees", "one:v1", {"file": "content"})
    with pytest.raises(AlreadyExistsError):
        stock(store, tmp_path / "trees", "one:v1", {"file": "another"})
    with pytest.raises(AlreadyExistsError):
        stock(store, tmp_path / "trees", "one:v1", {"file": "content"})
    assert layers_of(store) == [kept.layers[0].digest.removeprefix("sha256:")]
    check_whole(kept.layers[0])
    assert nothing_half_made(store)


def test_what_a_crash_left_is_removed_by_the_next_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = LocalStore(str(state))
    image = stock(first, tmp_path / "trees", "one:v1", {"file": "content"})
    (state / "building" / "half").mkdir()
    (state / "building" / "half" / "layer.data.partial").write_bytes(b"half")
    (state / "layers" / ("0" * 64)).mkdir()
    (state / "layers" / ("0" * 64) / "metadata.erofs").write_bytes(b"unknown")
    second = LocalStore(str(state))
    assert os.listdir(state / "building") == ["half"]
    second.close()
    first.close()
    third = LocalStore(str(state))
    assert os.listdir(state / "building") == []
    assert layers_of(third) == [image.layers[0].digest.removeprefix("sha256:")]
    third.close()


DYING = """
import os, signal, sys
from dsec.store import local
from dsec.store.build import build_layer
from dsec.store.images import build_image
from dsec.store.sources import DirectorySource
from libdsec.protocol.environment import ImageBuildRequest

state, tree, where = sys.argv[1:]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if where == "catalogue":
    local.Catalogue.publish = die
if where in ("rename", "within"):
    local.sync_directory = die
store = local.LocalStore(state)
if where == "within":
    with store.build_directory() as directory, store.taking() as taken:
        taken.take(build_layer(DirectorySource(tree), directory, "layer"), directory)
build_image(store, ImageBuildRequest("two:v1", f"dir:{tree}"), lambda p: die() if p.stage == where else None)
"""


@pytest.mark.parametrize("where", ["fetch", "write", "publish", "rename", "within", "catalogue"])
def test_a_build_killed_anywhere_leaves_nothing_that_stays(tmp_path: Path, where: str) -> None:
    state = str(tmp_path / "state")
    store = LocalStore(state)
    kept = stock(store, tmp_path / "trees", "one:v1", {"file": "content"})
    store.close()
    tree = write_tree(tmp_path / "large", {"file": "x" * 3_000_000})
    died = subprocess.run([sys.executable, "-c", DYING, state, str(tree), where])
    assert died.returncode == -signal.SIGKILL
    store = LocalStore(state)
    assert [image.ref for image in store.catalogue.list()] == ["one:v1"]
    assert layers_of(store) == [kept.layers[0].digest.removeprefix("sha256:")]
    assert nothing_half_made(store)
    build_image(store, ImageBuildRequest("two:v1", f"dir:{tree}"), lambda _: None)
    store.close()


@pytest.mark.parametrize("file", ["metadata.erofs", "data.erofs", "layer.json"])
def test_a_missing_file_is_said(store: LocalStore, tmp_path: Path, file: str) -> None:
    layer = stock(store, tmp_path / "trees", "one:v1", {"file": "content"}).layers[0]
    os.unlink(os.path.join(layer.directory, file))
    with pytest.raises(IntegrityError, match=layer.digest):
        check_whole(layer)


def flip(path: str, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def test_a_changed_metadata_image_is_found_before_mounting(store: LocalStore, tmp_path: Path) -> None:
    layer = stock(store, tmp_path / "trees", "one:v1", {"file": "content"}).layers[0]
    check_for_mount(layer)
    flip(layer.metadata, 1500)
    with pytest.raises(IntegrityError, match=r"metadata\.erofs has digest"):
        check_for_mount(layer)


def test_a_cut_data_file_is_found_before_mounting(store: LocalStore, tmp_path: Path) -> None:
    layer = stock(store, tmp_path / "trees", "one:v1", {"file": "content" * 10_000}).layers[0]
    os.truncate(layer.data, layer.data_bytes - 4096)
    with pytest.raises(IntegrityError, match="bytes, not"):
        check_for_mount(layer)


def test_one_changed_bit_of_data_is_found_with_its_chunk(store: LocalStore, tmp_path: Path) -> None:
    layer = stock(store, tmp_path / "trees", "one:v1", {"a": "x" * 300_000, "b": "y" * 300_000}).layers[0]
    check_whole(layer)
    flip(layer.data, 262_144 + 5)
    check_for_mount(layer)
    with pytest.raises(IntegrityError, match="chunk 1 ") as caught:
        check_whole(layer)
    assert caught.value.details["chunk"] == 1


def test_a_layer_of_another_generation_says_so(store: LocalStore, tmp_path: Path) -> None:
    """It runs where it is, but its chunks are not what this DSec would call them."""
    layer = stock(store, tmp_path / "s", "a:1", {"f": "1"}).layers[0]
    path = Path(layer.directory, "layer.json")
    path.write_text(path.read_text().replace('"generation":3', '"generation":2'))
    check_for_mount(layer)
    with pytest.raises(IntegrityError, match=r"is of generation 2, this DSec knows 3; remove the images [^;]*again$"):
        check_whole(layer)


def test_a_forged_record_is_found(store: LocalStore, tmp_path: Path) -> None:
    layer = stock(store, tmp_path / "trees", "one:v1", {"file": "content"}).layers[0]
    other = stock(store, tmp_path / "trees", "two:v1", {"file": "different"}).layers[0]
    os.replace(os.path.join(other.directory, "layer.json"), os.path.join(layer.directory, "layer.json"))
    with pytest.raises(IntegrityError, match=r"layer\.json"):
        check_whole(layer)
