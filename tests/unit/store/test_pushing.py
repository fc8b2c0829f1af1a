"""Pushed images as others find them: in layouts, in archives and in a real registry; and pulled back."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from layer_stacks import take
from layer_trees import noise

from dsec.store.diff import diff_images
from dsec.store.history import known_blob
from dsec.store.local import LocalStore
from dsec.store.oci.pull import Puller
from dsec.store.oci.push import push_image
from dsec.store.records import ImageRecord
from dsec.store.sources import BytesContent, Entry, HardLink, Opaque, SourceItem, Whiteout
from dsec.store.tree import Node
from libdsec.protocol.environment import BuildProgress, ImageConfig
from libdsec.protocol.errors import (
    AlreadyExistsError,
    ConflictError,
    FileOperationError,
    ImageNotFoundError,
    InvalidArgumentError,
)
from libdsec.protocol.images import ImagePullRequest, ImagePushed, ImagePushRequest

REG = stat.S_IFREG | 0o644
DIR = stat.S_IFDIR | 0o755
CONFIG = ImageConfig(
    {"A": "b=c", "PATH": "/bin"},
    "/srv",
    "7:8",
    entrypoint=("/bin/sh", "-c"),
    cmd=("true",),
    labels={"a": "b"},
    exposed_ports=("80/tcp",),
    stop_signal="SIGINT",
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(str(tmp_path / "state"))
    publish(store, "app:v1")
    yield store
    assert os.listdir(tmp_path / "state" / "building") == []
    store.close()


def publish(store: LocalStore, ref: str, extra: bytes = b"") -> ImageRecord:
    base: list[SourceItem] = [
        *(Entry(b"", Node(DIR)), Entry(b"d", Node(DIR)), Entry(b"d/one", Node(REG, mtime_ns=5), BytesContent(b"1"))),
        *(HardLink(b"d/two", b"d/one"), Entry(b"large", Node(REG, uid=9), BytesContent(noise(700_000)))),
        Entry(b"o", Node(DIR)),
        Entry(b"o/below", Node(REG)),
    ]
    upper: list[SourceItem] = [
        *(Entry(b"", Node(DIR)), Whiteout(b"large"), Opaque(b"o"), Entry(b"o/above", Node(REG), BytesContent(extra))),
    ]
    with store.taking() as taken:
        layers = (take(store, taken, base), take(store, taken, upper))
        image = ImageRecord(ref, "base", layers, CONFIG, 1_600_000_000.5)
        return store.publish_image(image, ("build of the base", "build of the rest"))


def nothing(news: BuildProgress) -> None:
    pass


def push(store: LocalStore, destination: str, ref: str = "app:v1", **options: bool) -> ImagePushed:
    return push_image(store, ImagePushRequest(ref, destination, **options), nothing)


def blob(layout: Path, digest: str) -> bytes:
    content = (layout / "blobs" / digest.replace(":", "/")).read_bytes()
    assert f"sha256:{hashlib.sha256(content).hexdigest()}" == digest
    return content


def test_a_layout_has_what_the_image_is(store: LocalStore, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    pushed = push(store, f"oci:{layout}")
    assert json.loads((layout / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads((layout / "index.json").read_bytes())["manifests"]
    assert entry["digest"] == pushed.digest
    assert entry["annotations"] == {"org.opencontainers.image.ref.name": "v1"}
    manifest = json.loads(blob(layout, pushed.digest))
    config = json.loads(blob(layout, manifest["config"]["digest"]))
    assert config["created"] == "2020-09-13T12:26:40.500000Z"
    assert [step["created_by"] for step in config["history"]] == ["build of the base", "build of the rest"]
    assert config["config"]["Env"] == ["A=b=c", "PATH=/bin"]
    for layer, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
        content = blob(layout, layer["digest"])
        assert len(content) == layer["size"]
        plain = subprocess.run(["gzip", "-dc"], input=content, capture_output=True, check=True).stdout
        assert f"sha256:{hashlib.sha256(plain).hexdigest()}" == diff_id


def test_the_same_image_is_the_same_everywhere(store: LocalStore, tmp_path: Path) -> None:
    first = push(store, f"oci:{tmp_path}/one")
    with LocalStoreAt(tmp_path / "second") as second:
        publish(second, "app:v1")
        assert push(second, f"oci:{tmp_path}/two:else").digest == first.digest
    assert push(store, f"oci-archive:{tmp_path}/three.tar").digest == first.digest


class LocalStoreAt:
    def __init__(self, path: Path) -> None:
        self._store = LocalStore(str(path))

    def __enter__(self) -> LocalStore:
        return self._store

    def __exit__(self, *_: object) -> None:
        self._store.close()


def test_other_images_in_a_layout_stay(store: LocalStore, tmp_path: Path) -> None:
    publish(store, "app:v2", b"more")
    layout = tmp_path / "layout"
    first = push(store, f"oci:{layout}")
    second = push(store, f"oci:{layout}", "app:v2")
    assert names(layout) == {"v1": first.digest, "v2": second.digest}
    assert push(store, f"oci:{layout}:v2", "app:v1").digest == first.digest
    assert names(layout) == {"v1": first.digest, "v2": first.digest}


def names(layout: Path) -> dict[str, str]:
    index = json.loads((layout / "index.json").read_bytes())
    return {each["annotations"]["org.opencontainers.image.ref.name"]: each["digest"] for each in index["manifests"]}


@pytest.mark.parametrize("scheme", ["oci", "oci-archive"])
def test_what_is_pulled_back_is_the_same_image(store: LocalStore, tmp_path: Path, scheme: str) -> None:
    push(store, f"{scheme}:{tmp_path}/there")
    same_after_pull(store, f"{scheme}:{tmp_path}/there")


def same_after_pull(store: LocalStore, source: str, **options: bool) -> None:
    Puller(store).pull(ImagePullRequest(source, "back:v1", merge_bytes=0, **options), nothing)
    back, image = store.catalogue.get("back:v1"), store.catalogue.get("app:v1")
    assert list(diff_images(store, "app:v1", "back:v1", lambda: None)) == []
    assert back.config == image.config
    assert [layer.digest for layer in back.layers] == [layer.digest for layer in image.layers]


def test_what_is_no_place_for_an_image_stays_as_it_is(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for place, error in (
        (f"oci:{tmp_path}/full", InvalidArgumentError),
        (f"oci:{tmp_path}/file", InvalidArgumentError),
        (f"oci:{tmp_path}/none/below", FileOperationError),
        (f"oci-archive:{tmp_path}/file", AlreadyExistsError),
        (f"oci-archive:{tmp_path}/none/new.tar", FileOperationError),
        (f"oci-archive:{tmp_path}/file/new.tar", FileOperationError),
        (f"oci-archive:{tmp_path}/{'n' * 250}", FileOperationError),
        (f"docker-archive:{tmp_path}/new", InvalidArgumentError),
    ):
        with pytest.raises(error):
            push(store, place)
    assert sorted(os.listdir(tmp_path)) == ["file", "full", "state"]
    assert os.listdir(tmp_path / "full") == ["mine"]
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(ImageNotFoundError):
        push(store, f"oci:{tmp_path}/new", "none:v1")


class StopError(Exception):
    pass


@pytest.mark.parametrize(
    ("stage", "place"),
    [
        *(("pack", "oci:{}/new"), ("send", "oci:{}/new"), ("pack", "oci:{}/there"), ("send", "oci:{}/there")),
        ("pack", "oci-archive:{}/new.tar"),
    ],
)
def test_a_push_that_is_given_up_leaves_nothing(store: LocalStore, tmp_path: Path, stage: str, place: str) -> None:
    publish(store, "other:v1", b"other")
    push(store, f"oci:{tmp_path}/there", "other:v1")
    (tmp_path / "there" / "blobs" / "sha256" / "strange").write_text("somebody else's")
    before = sorted(str(path) for path in tmp_path.rglob("*") if "state" not in path.parts)

    def stop(news: BuildProgress) -> None:
        if news.stage == stage:
            raise StopError

    with pytest.raises(StopError):
        push_image(store, ImagePushRequest("app:v1", place.format(tmp_path)), stop)
    assert sorted(str(path) for path in tmp_path.rglob("*") if "state" not in path.parts) == before


def test_an_image_that_gives_its_name_to_another_while_it_is_pushed(store: LocalStore, tmp_path: Path) -> None:
    def replace(news: BuildProgress) -> None:
        if not told:
            told.append(news)
            store.remove("app:v1", lambda _: False)
            with store.taking() as taken:
                layer = take(store, taken, [Entry(b"other", Node(REG))])
                store.publish_image(ImageRecord("app:v1", "base", (layer,), ImageConfig(), 1.0), ("another",))

    told: list[BuildProgress] = []
    pushed = push_image(store, ImagePushRequest("app:v1", f"oci:{tmp_path}/layout"), replace)
    manifest = json.loads(blob(tmp_path / "layout", pushed.digest))
    config = json.loads(blob(tmp_path / "layout", manifest["config"]["digest"]))
    assert len(config["history"]) == len(config["rootfs"]["diff_ids"]) == len(manifest["layers"]) == 2
    assert "another" not in json.dumps(config)


def test_what_a_push_left_that_died_is_no_hindrance(store: LocalStore, tmp_path: Path) -> None:
    """It died in the middle of a blob, with nothing but that in a new directory."""
    layout = tmp_path / "layout"
    program = (
        "import os, signal, sys\n"
        "from dsec.store.local import LocalStore\n"
        "from dsec.store.oci.push import push_image\n"
        "from libdsec.protocol.images import ImagePushRequest\n"
        "def news(step):\n"
        "    if step.stage == 'send':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "push_image(LocalStore(sys.argv[1]), ImagePushRequest('app:v1', sys.argv[2]), news)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "state"), f"oci:{layout}"]
    done = subprocess.run(command, timeout=60, check=False, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    left = [path.name for path in layout.rglob("*.part")]
    assert len(left) == 1
    push(store, f"oci:{layout}")
    assert list(layout.rglob("*.part")) == []
    same_after_pull(store, f"oci:{layout}")
    (dead,) = os.listdir(tmp_path / "state" / "building")  # until the store is opened alone
    shutil.rmtree(tmp_path / "state" / "building" / dead)


def test_two_pushes_at_once_into_one_layout(store: LocalStore, tmp_path: Path) -> None:
    refused: list[Exception] = []

    def again(news: BuildProgress) -> None:
        if not refused:
            with pytest.raises(ConflictError) as error:
                push(store, f"oci:{tmp_path}/layout")
            refused.append(error.value)

    push_image(store, ImagePushRequest("app:v1", f"oci:{tmp_path}/layout"), again)
    assert refused
    push(store, f"oci:{tmp_path}/layout")


def test_a_name_that_would_remove_another_is_refused(store: LocalStore, tmp_path: Path) -> None:
    with store.taking() as taken:
        layer = take(store, taken, [Entry(b"d/.wh.x", Node(REG))])
        store.publish_image(ImageRecord("bad:v1", "base", (layer,), ImageConfig(), 1.0))
    with pytest.raises(InvalidArgumentError, match=r"/d/\.wh\.x"):
        push(store, f"oci:{tmp_path}/layout", "bad:v1")
    assert not (tmp_path / "layout").exists()


@pytest.mark.needs("docker-registry")
def test_a_registry_takes_it_and_what_it_has_is_not_sent_again(store: LocalStore, registry: str) -> None:
    first = push(store, f"docker://{registry}/team/app:v1", plain_http=True)
    assert first.bytes_sent > 700_000 // 2
    again = push(store, f"docker://{registry}/team/app:again", plain_http=True)
    assert (again.digest, again.bytes_sent) == (first.digest, 0)
    publish(store, "app:v2", b"more")
    second = push(store, f"docker://{registry}/team/app:v2", "app:v2", plain_http=True)
    assert second.bytes_sent < 5000
    same_after_pull(store, f"docker://{registry}/team/app:v1", plain_http=True)
    (base, _) = store.catalogue.get("app:v1").layers
    assert known_blob(store.catalogue, base.digest) is not None


@pytest.mark.needs("docker-registry", "skopeo")
def test_another_tool_reads_it_from_the_registry(store: LocalStore, registry: str, tmp_path: Path) -> None:
    push(store, f"docker://{registry}/app:v1", plain_http=True)
    copy = ["skopeo", "copy", "--src-tls-verify=false", f"docker://{registry}/app:v1", f"oci:{tmp_path}/copied:v1"]
    subprocess.run(copy, check=True, capture_output=True, timeout=60)
    same_after_pull(store, f"oci:{tmp_path}/copied:v1")
