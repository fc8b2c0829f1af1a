"""Images that were pulled, pushed to the registry they came from: as the layers that they are there."""

from __future__ import annotations

import gzip
import json
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from layer_stacks import take
from oci_layouts import directory, file, opaque, tar, whiteout, write_layout

from dsec.store.diff import diff_images
from dsec.store.images import build_image
from dsec.store.local import LocalStore
from dsec.store.oci import push as push_module
from dsec.store.oci.manifest import OCI_LAYER, OCI_LAYER_GZIP, OCI_LAYER_ZSTD, OCI_MANIFEST
from dsec.store.oci.pull import Puller
from dsec.store.oci.push import push_image
from dsec.store.origins import PulledBlob, handed_on
from dsec.store.records import ImageRecord
from dsec.store.sources import BytesContent, Entry
from dsec.store.tree import Node
from libdsec.protocol.environment import BuildProgress, ImageBuildRequest, ImageConfig, LayerKind
from libdsec.protocol.images import ImagePullRequest, ImagePushed, ImagePushRequest

zstd = pytest.importorskip("backports.zstd")

pytestmark = pytest.mark.needs("docker-registry", "skopeo")

LAYERS = [
    tar(
        directory(b"d", 0o750), file(b"d/one", b"1" * 5000), file(b"d/gone", b"2"), directory(b"o"), file(b"o/x", b"x")
    ),
    tar(file(b"d/two", b"2" * 5000), whiteout(b"d/gone")),  # says nothing of the directory itself
    tar(directory(b"o"), opaque(b"o"), file(b"o/y", b"y" * 5000)),
]


class Remote(NamedTuple):
    host: str

    def put(self, layout: Path, name: str) -> None:
        """A layout's image, as another tool puts it."""
        copy = ["skopeo", "copy", "-q", "--preserve-digests", "--dest-tls-verify=false"]
        done = subprocess.run([*copy, f"oci:{layout}:v1", f"docker://{self.host}/{name}"], timeout=60, check=False)
        assert done.returncode == 0

    def manifest(self, name: str, tag: str) -> Any:
        request = urllib.request.Request(
            f"http://{self.host}/v2/{name}/manifests/{tag}", headers={"Accept": OCI_MANIFEST}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())

    def config(self, name: str, tag: str) -> Any:
        digest = self.manifest(name, tag)["config"]["digest"]
        with urllib.request.urlopen(f"http://{self.host}/v2/{name}/blobs/{digest}", timeout=10) as answer:
            return json.loads(answer.read())

    def layers(self, name: str, tag: str) -> list[str]:
        return [each["digest"] for each in self.manifest(name, tag)["layers"]]


@pytest.fixture
def remote(registry: str, tmp_path: Path) -> Remote:
    """Has `lib/base:v1`."""
    found = Remote(registry)
    write_layout(tmp_path / "layout", LAYERS)
    found.put(tmp_path / "layout", "lib/base:v1")
    return found


def nothing(_: BuildProgress) -> None:
    pass


def pull(store: LocalStore, source: str, ref: str, kind: LayerKind = "base", merge_bytes: int = 0) -> ImageRecord:
    request = ImagePullRequest(source, ref, kind=kind, merge_bytes=merge_bytes, plain_http=True)
    Puller(store).pull(request, nothing)
    return store.catalogue.get(ref)


def push(store: LocalStore, ref: str, destination: str) -> ImagePushed:
    return push_image(store, ImagePushRequest(ref, destination, plain_http=True), nothing)


def same(store: LocalStore, remote: Remote, name: str, ref: str) -> None:
    """What is there is the image here."""
    pull(store, f"docker://{remote.host}/{name}", "check:1", merge_bytes=1 << 30)
    assert list(diff_images(store, ref, "check:1", lambda: None)) == []
    store.remove("check:1", lambda _: False)


@pytest.mark.parametrize("merge_bytes", [0, 1 << 30])
@pytest.mark.parametrize("name", ["lib/base", "team/app"])
def test_no_layer_is_sent(store: LocalStore, remote: Remote, name: str, merge_bytes: int) -> None:
    """To another repository, too."""
    image = pull(store, f"docker://{remote.host}/lib/base:v1", "base:1", merge_bytes=merge_bytes)
    assert len(image.layers) == (1 if merge_bytes else 3)
    pushed = push(store, "base:1", f"docker://{remote.host}/{name}:v2")
    assert remote.layers(name, "v2") == remote.layers("lib/base", "v1")
    assert pushed.bytes_sent == remote.manifest(name, "v2")["config"]["size"]
    same(store, remote, f"{name}:v2", "base:1")


def test_what_is_made_of_it_shares_its_layers(store: LocalStore, remote: Remote) -> None:
    base = pull(store, f"docker://{remote.host}/lib/base:v1", "base:1", merge_bytes=1 << 30)
    with store.taking() as taken:
        mine = take(store, taken, [Entry(b"mine", Node(0o100644), BytesContent(b"mine" * 1000))])
        image = ImageRecord("app:1", "base", (*base.layers, mine), ImageConfig(), 1.0)
        store.publish_image(image, ("", "RUN it"), (handed_on("app:1", ("base:1",)),))
    push(store, "app:1", f"docker://{remote.host}/team/app:v1")
    layers = remote.layers("team/app", "v1")
    assert layers[:3] == remote.layers("lib/base", "v1")
    assert len(layers) == 4
    steps = remote.config("team/app", "v1")["history"]
    assert [step.get("created_by", "").rpartition(": ")[2] for step in steps[:2] + steps[3:]] == ["", "", "RUN it"]
    assert len(steps) == 4
    same(store, remote, "team/app:v1", "app:1")


def test_under_another_name_it_is_the_same(store: LocalStore, remote: Remote) -> None:
    pull(store, f"docker://{remote.host}/lib/base:v1", "base:1")
    build_image(store, ImageBuildRequest("other:1", "image:base:1", config=ImageConfig(env={"A": "b"})), nothing)
    store.remove("base:1", lambda _: False)
    push(store, "other:1", f"docker://{remote.host}/lib/other:v1")
    assert remote.layers("lib/other", "v1") == remote.layers("lib/base", "v1")


def test_over_other_layers_it_is_not_what_it_was(store: LocalStore, remote: Remote) -> None:
    """The second layer's directory is like the one below it, of which its blob says nothing."""
    base = pull(store, f"docker://{remote.host}/lib/base:v1", "base:1")
    alone = ImageRecord("alone:1", "base", base.layers[1:2], ImageConfig(), 1.0)
    store.publish_image(alone, (), (handed_on("alone:1", ("base:1",)),))
    push(store, "alone:1", f"docker://{remote.host}/lib/base:v2")
    assert set(remote.layers("lib/base", "v2")).isdisjoint(remote.layers("lib/base", "v1"))
    same(store, remote, "lib/base:v2", "alone:1")


def test_a_tar_that_becomes_the_same_layer_here_is_not_named(store: LocalStore, registry: str, tmp_path: Path) -> None:
    """It may be something else to others, and is somebody else's."""
    remote = Remote(registry)
    tars = {"attacker/x": tar(file(b"a", b"a" * 5000)) + bytes(10240), "lib/base": tar(file(b"a", b"a" * 5000))}
    for name, content in tars.items():
        write_layout(tmp_path / name, [content])
        remote.put(tmp_path / name, f"{name}:v1")
    images = [pull(store, f"docker://{registry}/{name}:v1", f"{name}:1") for name in tars]
    assert images[0].layers == images[1].layers
    push(store, "lib/base:1", f"docker://{registry}/team/app:v1")
    assert remote.layers("team/app", "v1") == remote.layers("lib/base", "v1") != remote.layers("attacker/x", "v1")
    store.publish_image(ImageRecord("mine:1", "base", images[0].layers, ImageConfig(), 1.0))
    push(store, "mine:1", f"docker://{registry}/team/app:v2")
    theirs = remote.layers("lib/base", "v1") + remote.layers("attacker/x", "v1")
    assert remote.layers("team/app", "v2")[0] not in theirs


def test_an_image_has_no_more_layers_than_others_take(
    store: LocalStore, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of one here, and two beside them."""
    base = pull(store, f"docker://{remote.host}/lib/base:v1", "base:1", merge_bytes=1 << 30)
    with store.taking() as taken:
        mine = [take(store, taken, [Entry(name, Node(0o100644), BytesContent(name))]) for name in (b"one", b"two")]
        image = ImageRecord("app:1", "base", (*base.layers, *mine), ImageConfig(), 1.0)
        store.publish_image(image, (), (handed_on("app:1", ("base:1",)),))
    for most, layers in ((5, 5), (4, 3)):
        monkeypatch.setattr(push_module, "MAX_LAYERS", most)
        push(store, "app:1", f"docker://{remote.host}/team/app:v{most}")
        assert len(remote.layers("team/app", f"v{most}")) == layers
        same(store, remote, f"team/app:v{most}", "app:1")


@pytest.mark.parametrize(
    ("type", "pushed"),
    [
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", OCI_LAYER_GZIP),
        ("application/vnd.docker.image.rootfs.diff.tar", OCI_LAYER),
        (OCI_LAYER_ZSTD, OCI_LAYER_ZSTD),
        ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", ""),
        ("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", ""),
        ("application/octet-stream", ""),
    ],
)
def test_only_what_may_be_pushed_is_named(type: str, pushed: str) -> None:
    assert push_module._oci_type(PulledBlob("", 0, "", type)) == pushed


def test_elsewhere_it_is_packed(store: LocalStore, remote: Remote, tmp_path: Path) -> None:
    pull(store, f"docker://{remote.host}/lib/base:v1", "base:1", merge_bytes=1 << 30)
    push(store, "base:1", f"oci:{tmp_path}/pushed")
    index = json.loads((tmp_path / "pushed" / "index.json").read_bytes())
    manifest = tmp_path / "pushed" / "blobs" / index["manifests"][0]["digest"].replace(":", "/")
    assert len(json.loads(manifest.read_bytes())["layers"]) == 1


@pytest.mark.parametrize(("squeeze", "type"), [(gzip.compress, OCI_LAYER_GZIP), (zstd.compress, OCI_LAYER_ZSTD)])
def test_a_layer_keeps_its_compression(
    store: LocalStore, registry: str, tmp_path: Path, squeeze: Callable[[bytes], bytes], type: str
) -> None:
    remote = Remote(registry)
    write_layout(tmp_path / "layout", LAYERS[:1], squeeze=squeeze, kind=type)
    remote.put(tmp_path / "layout", "lib/base:v1")
    pull(store, f"docker://{registry}/lib/base:v1", "base:1")
    push(store, "base:1", f"docker://{registry}/lib/base:v2")
    assert remote.manifest("lib/base", "v2")["layers"] == remote.manifest("lib/base", "v1")["layers"]
    assert remote.manifest("lib/base", "v2")["layers"][0]["mediaType"] == type
    same(store, remote, "lib/base:v2", "base:1")
