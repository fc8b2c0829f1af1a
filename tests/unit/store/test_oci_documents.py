"""Places, manifests, configs, layouts and archives: how they are read, and what is refused."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from oci_layouts import config_of, digest, file, manifest_of, put, squeezed, tar, write_layout

from dsec.store.oci.config import make_config, parse_config
from dsec.store.oci.files import TarFiles
from dsec.store.oci.manifest import (
    DOCKER_INDEX,
    OCI_INDEX,
    OCI_LAYER_GZIP,
    OCI_MANIFEST,
    Index,
    architecture,
    choose,
    parse_manifest,
)
from dsec.store.oci.reference import FilePlace, RegistryPlace, is_loopback, local_name, parse_place, place_name
from dsec.store.oci.source import Resolved, open_source
from libdsec.protocol.environment import ImageConfig
from libdsec.protocol.errors import (
    DSecError,
    FileOperationError,
    IntegrityError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedOperationError,
)

HELM = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
HEX = "0123456789abcdef" * 4
LAYER = tar(file(b"a", b"a"))


@pytest.mark.parametrize(
    ("text", "host", "name", "tag", "sum", "local"),
    [
        ("docker://debian:12", "registry-1.docker.io", "library/debian", "12", "", "debian:12"),
        ("docker://docker.io/team/app:v1", "registry-1.docker.io", "team/app", "v1", "", "team/app:v1"),
        ("docker://localhost:5000/a/b:T", "localhost:5000", "a/b", "T", "", "a/b:T"),
        ("docker://r.example.com/x__y:1", "r.example.com", "x__y", "1", "", ""),
        ("docker://[::1]:5000/a:1", "[::1]:5000", "a", "1", "", "a:1"),
        (f"docker://h.io/a@sha256:{HEX}", "h.io", "a", "", f"sha256:{HEX}", ""),
        (f"docker://h.io/a:v@sha256:{HEX}", "h.io", "a", "v", f"sha256:{HEX}", "a:v"),
    ],
)
def test_places_in_registries(text: str, host: str, name: str, tag: str, sum: str, local: str) -> None:
    place = parse_place(text)
    assert place == RegistryPlace(host, name, tag, sum)
    assert place_name(place) == local
    assert place.reference == sum or tag


def test_places_on_this_node() -> None:
    assert parse_place("oci:/a/b") == FilePlace("oci", "/a/b", "")
    assert parse_place("oci:/a/b:v1") == FilePlace("oci", "/a/b", "v1")
    assert parse_place("docker-archive:/a.tar:h/x:v1") == FilePlace("docker-archive", "/a.tar", "h/x:v1")


@pytest.mark.parametrize(
    "text",
    [
        *("", "debian:12", "docker:debian:12", "docker://", "docker://debian", "docker://Debian:12", "docker://a b:1"),
        *("docker://h.io/a@sha256:12", "docker://h.io/a@md5:" + HEX, "docker://h.io:99999/a:1", "docker://-h.io/a:1"),
        *("docker://user@h.io/a:1", "docker://h.io/../a:1", "docker://h.io/a:1\n", "docker://h.io/a:" + "t" * 129),
        *("oci:rel/ative", "oci:", "oci:/a:b c", "docker-archive:a", "dir:/a", "https://h.io/a:1", "oci:/a\0b"),
        "docker://" + "a" * 5000 + ":1",
    ],
)
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot use"):
        parse_place(text)


def test_names_here() -> None:
    assert local_name("docker.io/library/debian:12") == "debian:12"
    assert local_name("registry.example.com:5000/a/b:v1") == "a/b:v1"
    assert local_name("a/b:v1") == "a/b:v1"
    assert local_name("UPPER:1") == local_name("a") == local_name("") == ""


def test_no_image_from_outside_says_that_a_build_has_made_it() -> None:
    name = "build-cache/" + "0" * 64 + ":7"
    assert local_name(name) == local_name(f"registry.example.com/{name}") == local_name("build-cache:1") == ""
    assert place_name(RegistryPlace("registry.example.com", name.partition(":")[0], "7", "")) == ""
    assert local_name("build-cached/a:1") == "build-cached/a:1"


def test_loopback() -> None:
    assert all(map(is_loopback, ("localhost", "localhost:1", "127.0.0.1", "127.8.8.8:5000", "[::1]", "[::1]:5")))
    assert not any(map(is_loopback, ("", "127.0.0.1.example.com", "localhost.x", "10.0.0.1", "[::2]:5", "0.0.0.0")))


def manifest(**changes: Any) -> bytes:
    document: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": f"sha256:{HEX}", "size": 9},
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": f"sha256:{HEX}", "size": 9}],
    }
    document.update(changes)
    return json.dumps({name: value for name, value in document.items() if value is not None}).encode()


def one_layer(**changes: Any) -> list[dict[str, Any]]:
    layer = {"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "digest": f"sha256:{HEX}", "size": 9}
    return [{**layer, **changes}]


def test_a_manifest() -> None:
    assert not isinstance(parse_manifest(manifest(), "x"), Index)
    assert not isinstance(parse_manifest(manifest(mediaType=None), "x", OCI_MANIFEST), Index)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", InvalidArgumentError),
        (b"[]", InvalidArgumentError),
        (b"{}", InvalidArgumentError),
        (b"[" * 100_000, InvalidArgumentError),
        (b" " * (4 << 20) + b"{}", InvalidArgumentError),
        (manifest(schemaVersion=1), UnsupportedOperationError),
        (manifest(schemaVersion=3), InvalidArgumentError),
        (manifest(manifests=[]), InvalidArgumentError),
        (manifest(mediaType=OCI_INDEX), InvalidArgumentError),
        (manifest(mediaType=OCI_MANIFEST, config=None, layers=None, manifests=[]), InvalidArgumentError),
        (manifest(layers=None), InvalidArgumentError),
        (manifest(layers=one_layer() * 128), InvalidArgumentError),
        (manifest(layers=one_layer(digest="sha256:../../etc")), InvalidArgumentError),
        (manifest(layers=one_layer(digest="sha512:" + HEX * 2)), InvalidArgumentError),
        (manifest(layers=one_layer(size=-1)), InvalidArgumentError),
        (manifest(layers=one_layer(size=1 << 50)), InvalidArgumentError),
        (manifest(layers=one_layer(size="9")), InvalidArgumentError),
        (manifest(layers=one_layer(mediaType=HELM)), UnsupportedOperationError),
        (manifest(layers=one_layer(mediaType=OCI_LAYER_GZIP + "+encrypted")), UnsupportedOperationError),
        (manifest(config=one_layer(mediaType=HELM)[0]), UnsupportedOperationError),
    ],
)
def test_manifests_that_are_refused(body: bytes, error: type[DSecError]) -> None:
    with pytest.raises(error, match="cannot use"):
        parse_manifest(body, "x")


def test_a_manifest_that_came_as_something_else() -> None:
    with pytest.raises(InvalidArgumentError, match="calls itself"):
        parse_manifest(manifest(), "x", DOCKER_INDEX)
    with pytest.raises(UnsupportedOperationError, match="schema 1"):
        parse_manifest(b"{}", "x", "application/vnd.docker.distribution.manifest.v1+prettyjws")


def entry(system: str, processor: str, variant: str = "", size: int = 9) -> dict[str, Any]:
    described = {"os": system, "architecture": processor, "variant": variant}
    return {"mediaType": OCI_MANIFEST, "digest": f"sha256:{HEX}", "size": size, "platform": described}


def index(*entries: dict[str, Any]) -> Index:
    found = parse_manifest(json.dumps({"schemaVersion": 2, "manifests": entries}).encode(), "x")
    assert isinstance(found, Index)
    return found


def test_an_index_has_this_nodes_image() -> None:
    own = architecture()
    found = index(
        entry("windows", own), entry("linux", own, "v3", 1), entry("linux", own, "", 2), entry("unknown", "x")
    )
    assert choose(found, "x").size == 2
    with pytest.raises(UnsupportedOperationError, match="linux/other, windows/"):
        choose(index(entry("linux", "other"), entry("windows", own)), "x")
    with pytest.raises(UnsupportedOperationError, match="only for nothing"):
        choose(index(), "x")


def test_the_config_and_back() -> None:
    defaults = {
        "Env": ["A=b=c", "B", "A=last"],
        "WorkingDir": "app",
        "User": "7:8",
        "Entrypoint": ["/bin/e"],
        "Cmd": ["x", "y"],
        "Labels": {"l": "1"},
        "ExposedPorts": {"80/tcp": {}},
        "StopSignal": "SIGINT",
        "Volumes": {"/v": {}},
    }
    history = [{"created_by": "ADD"}, {"created_by": "ENV", "empty_layer": True}]
    read = parse_config(json.dumps(config_of([LAYER], defaults, history=history)).encode(), "x")
    assert read.diff_ids == (digest(LAYER),)
    assert read.made_by == ("ADD",)
    assert read.config == ImageConfig(
        env={"A": "last", "B": ""},
        cwd="/app",
        user="7:8",
        entrypoint=("/bin/e",),
        cmd=("x", "y"),
        labels={"l": "1"},
        exposed_ports=("80/tcp",),
        stop_signal="SIGINT",
    )
    again = make_config(read.config, read.diff_ids, [{"created_by": "ADD"}], "2020-01-01T00:00:00Z")
    assert parse_config(again, "x") == read
    empty = json.dumps(config_of([], None)).encode()
    assert parse_config(empty, "x").config == ImageConfig()
    assert parse_config(make_config(ImageConfig(), (), (), "2020-01-01T00:00:00Z"), "x").config == ImageConfig()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"os": "windows"}, UnsupportedOperationError),
        ({"architecture": "pdp11"}, UnsupportedOperationError),
        ({"rootfs": {"type": "layers", "diff_ids": ["sha256:x"]}}, InvalidArgumentError),
        ({"rootfs": {"type": "layers", "diff_ids": [f"sha256:{HEX}"] * 128}}, InvalidArgumentError),
        ({"rootfs": {"type": "other", "diff_ids": []}}, InvalidArgumentError),
        ({"config": {"Env": ["=x"]}}, InvalidArgumentError),
        ({"config": {"Env": ["a=\0"]}}, InvalidArgumentError),
        ({"config": {"Env": "A=b"}}, InvalidArgumentError),
        ({"config": []}, InvalidArgumentError),
        ({"config": {"Labels": {"a": "x" * 140_000}}}, InvalidArgumentError),
        ({"config": {"WorkingDir": "/a\0"}}, InvalidArgumentError),
        ({"config": {"User": "\0"}}, InvalidArgumentError),
        ({"config": {"Cmd": ["a\0"]}}, InvalidArgumentError),
    ],
)
def test_configs_that_are_refused(changes: dict[str, Any], error: type[DSecError]) -> None:
    with pytest.raises(error, match="cannot use"):
        parse_config(json.dumps(config_of([LAYER], **changes)).encode(), "x")


def resolve(place: str) -> Resolved:
    source = open_source(parse_place(place))
    try:
        return source.resolve()
    finally:
        source.close()


def contents(place: str) -> list[bytes]:
    """The blobs of its layers."""
    source = open_source(parse_place(place))
    try:
        return [source.open_layer(layer, lambda _: None).read() for layer in source.resolve().layers]
    finally:
        source.close()


def test_a_layout_in_a_directory_and_in_a_tar(tmp_path: Path) -> None:
    layout = tmp_path / "app"
    top = write_layout(layout, [LAYER, LAYER])
    with tarfile.open(tmp_path / "app.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(layout, ".")
    for place in (f"oci:{layout}", f"oci:{layout}:v1", f"oci-archive:{tmp_path}/app.tar"):
        found = resolve(place)
        assert found.name == "app:v1"
        assert [layer.diff_id for layer in found.layers] == [digest(LAYER)] * 2
        assert contents(place) == [squeezed(LAYER)] * 2
    with pytest.raises(NotFoundError, match="there are v1"):
        resolve(f"oci:{layout}:v2")
    assert top == digest((layout / "blobs" / "sha256" / top[7:]).read_bytes())


def test_a_layout_of_several_images_and_indexes(tmp_path: Path) -> None:
    write_layout(tmp_path, [LAYER])
    listed = json.loads((tmp_path / "index.json").read_text())
    inner = listed["manifests"][0]
    del inner["annotations"]
    for _ in range(2):
        body = json.dumps({"schemaVersion": 2, "manifests": [inner]}).encode()
        inner = {"mediaType": OCI_INDEX, **put(tmp_path, body)}
        inner["platform"] = {"os": "linux", "architecture": architecture()}
    named = [{**inner, "annotations": {"org.opencontainers.image.ref.name": name}} for name in ("a", "b")]
    (tmp_path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": named}))
    assert len(resolve(f"oci:{tmp_path}:b").layers) == 1
    with pytest.raises(InvalidArgumentError, match="2 images, say which: a, b"):
        resolve(f"oci:{tmp_path}")
    body = json.dumps({"schemaVersion": 2, "manifests": [inner]}).encode()
    deep = {"mediaType": OCI_INDEX, **put(tmp_path, body)}
    (tmp_path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [deep]}))
    with pytest.raises(InvalidArgumentError, match="one in another"):
        resolve(f"oci:{tmp_path}")


def test_layouts_that_are_broken(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="no such directory"):
        resolve(f"oci:{tmp_path}/none")
    with pytest.raises(InvalidArgumentError, match=r"no index\.json"):
        resolve(f"oci:{tmp_path}")
    top = write_layout(tmp_path, [LAYER])
    blob = tmp_path / "blobs" / "sha256" / top[7:]
    body = blob.read_bytes()
    blob.write_bytes(body.replace(b"schema", b"Schema"))
    with pytest.raises(IntegrityError, match="digest"):
        resolve(f"oci:{tmp_path}")
    blob.write_bytes(body[:-1])
    with pytest.raises(IntegrityError, match="bytes, not"):
        resolve(f"oci:{tmp_path}")
    blob.unlink()
    with pytest.raises(IntegrityError, match="is missing"):
        resolve(f"oci:{tmp_path}")
    blob.mkdir()
    with pytest.raises(InvalidArgumentError, match="no regular file"):
        resolve(f"oci:{tmp_path}")


def test_layers_and_digests_of_layers_must_be_as_many(tmp_path: Path) -> None:
    write_layout(tmp_path, [LAYER])
    body = manifest_of(tmp_path, config_of([LAYER, LAYER]), [squeezed(LAYER)])
    entry = {"mediaType": OCI_MANIFEST, **put(tmp_path, body)}
    (tmp_path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    with pytest.raises(InvalidArgumentError, match="1 layers, its config 2"):
        resolve(f"oci:{tmp_path}")


def saved(path: Path, *tags: str, layers: int = 2, links: bool = True, **members: bytes) -> None:
    """As `docker save` wrote them for long: a directory a layer, equal layers as links."""
    config = json.dumps(config_of([LAYER] * layers, {"Env": ["A=b"]})).encode()
    name = digest(config)[7:] + ".json"
    listed = [{"Config": name, "RepoTags": [tag], "Layers": ["one/layer.tar", "two/layer.tar"]} for tag in tags]
    with tarfile.open(path, "w") as archive:
        for member, content in {name: config, "one/layer.tar": LAYER, **members}.items():
            described = tarfile.TarInfo(member)
            described.size = len(content)
            archive.addfile(described, io.BytesIO(content))
        link = tarfile.TarInfo("two/layer.tar")
        link.type, link.linkname = (
            (tarfile.SYMTYPE, "../one/layer.tar") if links else (tarfile.LNKTYPE, "one/layer.tar")
        )
        archive.addfile(link)
        listing = tarfile.TarInfo("manifest.json")
        body = json.dumps(listed).encode()
        listing.size = len(body)
        archive.addfile(listing, io.BytesIO(body))


@pytest.mark.parametrize("links", [True, False])
def test_what_docker_saves(tmp_path: Path, links: bool) -> None:
    path = tmp_path / "s.tar"
    saved(path, "example.com/team/app:v1", links=links)
    found = resolve(f"docker-archive:{path}")
    assert found.name == "team/app:v1"
    assert found.config.env == {"A": "b"}
    assert contents(f"docker-archive:{path}") == [LAYER, LAYER]


def test_saved_archives_that_are_broken(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    with pytest.raises(InvalidArgumentError, match="no such file"):
        resolve(f"docker-archive:{path}")
    saved(path, "a:1", "b:2")
    with pytest.raises(InvalidArgumentError, match="2 images, say which: a:1, b:2"):
        resolve(f"docker-archive:{path}")
    assert resolve(f"docker-archive:{path}:b:2").name == "b:2"
    with pytest.raises(NotFoundError):
        resolve(f"docker-archive:{path}:c:3")
    saved(path, "a:1", layers=1)
    with pytest.raises(InvalidArgumentError, match="2 layers and 1 digests"):
        resolve(f"docker-archive:{path}")
    path.write_bytes(squeezed(path.read_bytes()))
    with pytest.raises(InvalidArgumentError, match=r"no plain tar|compressed"):
        resolve(f"docker-archive:{path}")
    path.write_bytes(b"")
    with pytest.raises(InvalidArgumentError, match="no manifest"):
        resolve(f"docker-archive:{path}")
    path.unlink()
    path.mkdir()
    with pytest.raises((InvalidArgumentError, FileOperationError)):
        resolve(f"docker-archive:{path}")


def test_an_index_of_a_tar_ends_where_the_tar_does(tmp_path: Path) -> None:
    path = tmp_path / "t.tar"
    saved(path, "a:1")
    whole = path.read_bytes()
    for size in (100, 600, 1100, 2600):
        path.write_bytes(whole[:size])
        with pytest.raises(InvalidArgumentError, match="cut off"):
            TarFiles(str(path))
    loop = [tarfile.TarInfo(name) for name in ("a", "b")]
    with tarfile.open(path, "w") as archive:
        for described, target in zip(loop, ("b", "a"), strict=True):
            described.type, described.linkname = tarfile.SYMTYPE, target
            archive.addfile(described)
    files = TarFiles(str(path))
    with pytest.raises(InvalidArgumentError, match="link to a link"):
        files.open("a")
    assert files.open("../etc/passwd") is None
    files.close()
