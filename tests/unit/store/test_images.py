"""Images from directories and tars: published whole or not at all."""

import io
import os
import tarfile
from pathlib import Path

import pytest
from stocked import write_tree

from dsec.store.images import build_image
from dsec.store.local import LocalStore
from dsec.store.verify import check_whole
from libdsec.protocol.environment import BuildProgress, ImageBuildRequest, ImageConfig
from libdsec.protocol.errors import AlreadyExistsError, ImageNotFoundError, InvalidArgumentError


def nothing(progress: BuildProgress) -> None:
    pass


def is_empty(store: LocalStore) -> bool:
    building = os.path.join(store.state_dir, "building")
    return not store.catalogue.list() and not os.listdir(building) and not os.listdir(store.layers_dir)


def test_a_directory(store: LocalStore, tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", {"a/file": "x" * 3_000_000, "b": "-> a"})
    seen: list[BuildProgress] = []
    config = ImageConfig({"A": "b"}, "/a")
    request = ImageBuildRequest("one:v1", f"dir:{tree}", "toolkit", config=config)
    info = build_image(store, request, seen.append)
    assert (info.ref, info.kind, info.config) == ("one:v1", "toolkit", config)
    assert info.layers[0].files == 1
    assert store.catalogue.get("one:v1").info() == info
    check_whole(store.catalogue.get("one:v1").layers[0])
    assert [p.stage for p in seen if p.stage != "write"] == ["fetch", "publish"]
    written = [p.bytes_done for p in seen if p.stage == "write"]
    assert written == sorted(written)
    assert 0 < written[-1] <= 3_000_000


@pytest.mark.parametrize("mode", ["w:", "w:gz", "w:xz", "w:bz2"])
def test_a_tar_however_compressed_is_the_same_layer(store: LocalStore, tmp_path: Path, mode: str) -> None:
    tree = write_tree(tmp_path / "tree", {"a/file": "content"})
    with tarfile.open(tmp_path / "t", mode) as tar:
        tar.add(tree, ".")
    made = build_image(store, ImageBuildRequest("tar:1", f"tar:{tmp_path / 't'}"), nothing)
    other = build_image(store, ImageBuildRequest("dir:1", f"dir:{tree}"), nothing)
    assert made.layers == other.layers


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("", "release:NAME"),
        ("dir:", "release:NAME"),
        ("nonsense:/x", "release:NAME"),
        ("/just/a/path", "release:NAME"),
        ("dir:relative/path", "absolute"),
        ("tar:relative", "absolute"),
        ("dir:/does/not/exist", "no such directory"),
        ("tar:/does/not/exist", "No such file"),
        ("tar:/tmp", "no regular file"),
        ("tar:/dev/null", "no regular file"),
        ("dir:/etc/hostname/x", "no such directory"),
    ],
)
def test_a_bad_source_is_named(store: LocalStore, source: str, named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        build_image(store, ImageBuildRequest("one:v1", source), nothing)
    assert is_empty(store)


@pytest.mark.parametrize("name", ["One:1", "one", "one:v1:v2", ""])
def test_a_bad_name_is_refused_first(store: LocalStore, name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        build_image(store, ImageBuildRequest(name, "dir:/does/not/matter"), nothing)


def test_packages_and_mirrors_belong_to_releases(store: LocalStore, tmp_path: Path) -> None:
    for request in (
        ImageBuildRequest("one:v1", f"dir:{tmp_path}", packages=("git",)),
        ImageBuildRequest("one:v1", f"tar:{tmp_path}/x", mirror="http://mirror.example"),
    ):
        with pytest.raises(InvalidArgumentError, match="release"):
            build_image(store, request, nothing)


def test_a_taken_name_is_said_before_anything_is_read(store: LocalStore, tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", {"file": "content"})
    build_image(store, ImageBuildRequest("one:v1", f"dir:{tree}"), nothing)
    seen: list[BuildProgress] = []
    with pytest.raises(AlreadyExistsError, match="one:v1"):
        build_image(store, ImageBuildRequest("one:v1", "dir:/does/not/exist"), seen.append)
    assert seen == []


def test_a_tar_that_escapes_names_its_member(store: LocalStore, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("fine"))
        member = tarfile.TarInfo("../outside")
        member.size = 4
        tar.addfile(member, io.BytesIO(b"evil"))
    with pytest.raises(InvalidArgumentError, match=r"\.\./outside"):
        build_image(store, ImageBuildRequest("one:v1", f"tar:{tmp_path / 't.tar'}"), nothing)
    assert is_empty(store)
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("stage", ["fetch", "write", "publish"])
def test_a_callback_that_raises_ends_the_build(store: LocalStore, tmp_path: Path, stage: str) -> None:
    tree = write_tree(tmp_path / "tree", {"file": "x" * 5_000_000})

    class Enough(Exception):
        pass

    def stop(progress: BuildProgress) -> None:
        if progress.stage == stage:
            raise Enough

    with pytest.raises(Enough):
        build_image(store, ImageBuildRequest("one:v1", f"dir:{tree}"), stop)
    assert is_empty(store)
    build_image(store, ImageBuildRequest("one:v1", f"dir:{tree}"), nothing)


def test_an_image_of_another_with_another_configuration(store: LocalStore, tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", {"a/file": "content"})
    first = build_image(store, ImageBuildRequest("first:1", f"dir:{tree}"), nothing)
    config = ImageConfig({"A": "b"}, "/a", "1000", cmd=("run",))
    second = build_image(store, ImageBuildRequest("second:1", "image:first:1", config=config), nothing)
    assert (second.layers, second.config, second.parent) == (first.layers, config, "first:1")
    assert store.remove("first:1", lambda digest: False) == ()  # the other image has the layer still
    check_whole(store.catalogue.get("second:1").layers[0])
    with pytest.raises(ImageNotFoundError, match="first:1"):
        build_image(store, ImageBuildRequest("third:1", "image:first:1"), nothing)


def test_an_empty_root_is_the_same_everywhere(store: LocalStore) -> None:
    one = build_image(store, ImageBuildRequest("one:1", "empty:/"), nothing)
    two = build_image(store, ImageBuildRequest("two:1", "empty:/"), nothing)
    assert one.layers == two.layers
    assert one.layers[0].files == 0
    with pytest.raises(InvalidArgumentError, match="empty:/"):
        build_image(store, ImageBuildRequest("three:1", "empty:/etc"), nothing)
