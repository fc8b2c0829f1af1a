"""Base, workspace and toolkits as one stack, and what must not be stacked."""

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from layer_stacks import take
from stocked import stock

from dsec.store.compose import compose
from dsec.store.listing import DIRECTORY, Listing
from dsec.store.local import LocalStore
from dsec.store.records import ImageRecord
from dsec.store.sources import BytesContent, Entry
from dsec.store.tree import Node
from libdsec.protocol.environment import ImageConfig, LayerKind
from libdsec.protocol.errors import ConflictError, ImageNotFoundError, IntegrityError, InvalidArgumentError
from libdsec.protocol.spec import SandboxSpec

BASE = {"bin": "-> usr/bin", "usr/bin/sh": "#!", "etc/passwd": "root", "opt": None, "srv/file": "text"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    config = ImageConfig({"PATH": "/bin", "A": "base"}, "/srv", "app")
    with contextlib.closing(LocalStore(str(tmp_path / "state"))) as store:
        stock(store, tmp_path / "trees", "base:1", BASE, config=config)
        yield store


def test_the_base_alone(store: LocalStore) -> None:
    found = compose(store.catalogue, SandboxSpec("base:1"))
    assert found.layers == store.catalogue.get("base:1").layers
    assert found.config == ImageConfig({"PATH": "/bin", "A": "base"}, "/srv", "app")


def test_the_order_is_base_workspace_toolkits(store: LocalStore, tmp_path: Path) -> None:
    trees = tmp_path / "trees"
    stock(store, trees, "work:1", {"work/file": "1"}, "workspace", ImageConfig({"A": "work"}, "/work"))
    stock(store, trees, "tool:1", {"opt/one/file": "1"}, "toolkit", ImageConfig({"T": "1", "A": "tool"}, "/ignored"))
    stock(store, trees, "tool:2", {"opt/two/file": "2"}, "toolkit", ImageConfig({"T": "2"}))
    found = compose(store.catalogue, SandboxSpec("base:1", workspace="work:1", toolkits=("tool:2", "tool:1")))
    refs = ("base:1", "work:1", "tool:2", "tool:1")
    assert found.layers == tuple(store.catalogue.get(ref).layers[0] for ref in refs)
    assert found.config == ImageConfig({"PATH": "/bin", "A": "tool", "T": "1"}, "/work", "app")


def test_a_layer_that_comes_twice_is_taken_at_its_highest_place(store: LocalStore, tmp_path: Path) -> None:
    trees = tmp_path / "trees"
    stock(store, trees, "work:1", {"work": "1"}, "workspace")
    stock(store, trees, "tool:1", {"tool": "1"}, "toolkit")
    stock(store, trees, "tool:2", {"work": "1"}, "toolkit")
    found = compose(store.catalogue, SandboxSpec("base:1", workspace="work:1", toolkits=("tool:1", "tool:2")))
    refs = ("base:1", "tool:1", "tool:2")
    assert found.layers == tuple(store.catalogue.get(ref).layers[0] for ref in refs)


def test_what_is_of_another_kind_or_not_there_is_refused(store: LocalStore, tmp_path: Path) -> None:
    stock(store, tmp_path / "trees", "tool:1", {"tool": "1"}, "toolkit")
    for spec, field in (
        (SandboxSpec("tool:1"), "image"),
        (SandboxSpec("base:1", workspace="tool:1"), "workspace"),
        (SandboxSpec("base:1", toolkits=("base:1",)), "toolkits"),
        (SandboxSpec("base:1", toolkits=("tool:1", "tool:1")), "toolkits"),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            compose(store.catalogue, spec)
        assert caught.value.details["field"] == field
    with pytest.raises(ImageNotFoundError, match="none:1"):
        compose(store.catalogue, SandboxSpec("base:1", workspace="none:1"))


@pytest.mark.parametrize(
    ("toolkit", "named"),
    [
        ({"bin/tool": "#!"}, "/bin"),
        ({"etc": "a file"}, "/etc"),
        ({"usr/bin": "-> /opt/bin"}, "/usr/bin"),
        ({"etc/passwd/x": "1"}, "/etc/passwd"),
        ({"usr/local/ok": "1", "srv/file/deep/er": "1"}, "/srv/file"),
    ],
)
def test_a_toolkit_that_would_hide_a_tree_is_refused(
    store: LocalStore, tmp_path: Path, toolkit: dict[str, str | None], named: str
) -> None:
    stock(store, tmp_path / "trees", "tool:1", toolkit, "toolkit")
    for _ in range(2):
        with pytest.raises(ConflictError, match="tool:1") as caught:
            compose(store.catalogue, SandboxSpec("base:1", toolkits=("tool:1",)))
        assert f"{named} " in caught.value.details["why"] or f"{named}," in caught.value.details["why"]


@pytest.mark.parametrize(
    "toolkit",
    [
        {"bin": "-> elsewhere"},
        {"etc/passwd": "replaced", "usr/bin/tool": "#!", "opt/tool/deep/file": "1"},
        {"srv/file": "-> ../etc/passwd"},
        {"new/bin": None},
    ],
)
def test_what_hides_no_tree_is_fine(store: LocalStore, tmp_path: Path, toolkit: dict[str, str | None]) -> None:
    stock(store, tmp_path / "trees", "tool:1", toolkit, "toolkit")
    assert len(compose(store.catalogue, SandboxSpec("base:1", toolkits=("tool:1",))).layers) == 2


def test_the_highest_layer_below_decides(store: LocalStore, tmp_path: Path) -> None:
    """The workspace made a directory of what is a link in the base: a toolkit's directory merges with that."""
    trees = tmp_path / "trees"
    stock(store, trees, "work:1", {"bin/own": "1"}, "workspace")
    stock(store, trees, "tool:1", {"bin/tool": "1"}, "toolkit")
    assert len(compose(store.catalogue, SandboxSpec("base:1", workspace="work:1", toolkits=("tool:1",))).layers) == 3
    with pytest.raises(ConflictError):
        compose(store.catalogue, SandboxSpec("base:1", toolkits=("tool:1",)))


def test_toolkits_are_checked_against_each_other(store: LocalStore, tmp_path: Path) -> None:
    stock(store, tmp_path / "trees", "tool:1", {"opt/x": "a file"}, "toolkit")
    stock(store, tmp_path / "trees", "tool:2", {"opt/x/y": "a file"}, "toolkit")
    with pytest.raises(ConflictError, match="tool:2"):
        compose(store.catalogue, SandboxSpec("base:1", toolkits=("tool:1", "tool:2")))


def test_a_tree_may_be_as_deep_as_a_path_can_be_long(store: LocalStore) -> None:
    deep = b"/".join([b"d"] * 2000)
    with store.taking() as taken:
        for ref, kind, at in (("deep:1", "base", deep), ("tool:1", "toolkit", deep), ("tool:2", "toolkit", deep[:-2])):
            layer = take(store, taken, [Entry(at, Node(stat.S_IFREG | 0o644), BytesContent(ref.encode()))])
            store.publish_image(ImageRecord(ref, cast("LayerKind", kind), (layer,), ImageConfig(), 1.0))
    assert len(compose(store.catalogue, SandboxSpec("deep:1", toolkits=("tool:1",))).layers) == 2
    with pytest.raises(ConflictError, match="tool:2"):
        compose(store.catalogue, SandboxSpec("deep:1", toolkits=("tool:2",)))


def test_a_listing_has_every_name_of_a_large_directory(store: LocalStore, tmp_path: Path) -> None:
    names = {f"{'n' * (number % 200)}{number}": "x" for number in range(3000)}
    layer = stock(store, tmp_path / "trees", "many:1", {**{f"d/{n}": x for n, x in names.items()}}).layers[0]
    listing = Listing(layer.metadata)
    nid, kind = listing.children(listing.root)[b"d"]
    assert kind == DIRECTORY
    assert listing.children(nid).keys() == {name.encode() for name in names}
    listing.close()


def test_a_damaged_image_cannot_be_listed(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"no image".ljust(4096, b"\0"))
    with pytest.raises(IntegrityError, match="not an EROFS image"):
        Listing(str(tmp_path / "image"))
    with pytest.raises(IntegrityError, match="cannot list"):
        Listing(str(tmp_path / "none"))
