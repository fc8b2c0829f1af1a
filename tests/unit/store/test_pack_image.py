"""The image that a packed layer becomes part of, and what is found when the step is said again."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from dsec.store import catalogue as catalogue_module
from dsec.store.history import MAX_MADE_BY, history
from dsec.store.images import build_image
from dsec.store.local import LocalStore
from dsec.store.origins import Origin, PulledBlob, find, remember
from dsec.store.pack import pack as pack_module
from dsec.store.pack.order import Packing, Upper
from dsec.store.pack.pack import check, pack
from libdsec.protocol.environment import ImageBuildRequest, ImageConfig, LayerKind
from libdsec.protocol.errors import (
    AlreadyExistsError,
    CapacityError,
    ConflictError,
    ImageNotFoundError,
    InvalidArgumentError,
)
from libdsec.protocol.images import PackDiffRequest, PackedDiff
from libdsec.protocol.spec import SandboxSpec

SANDBOX = "s" * 24


class Store:
    """With `base:1`, `work:1` and `tool:1`, and the upper of a sandbox of all three."""

    def __init__(self, directory: Path) -> None:
        self.local = LocalStore(str(directory / "state"))
        self.upper = directory / "upper"
        self._numbers = itertools.count()
        for kind in ("base", "workspace", "toolkit"):
            tree = directory / kind
            tree.mkdir()
            (tree / kind).write_text(kind)
            config = ImageConfig(env={"OF": kind, kind: "1"}, user="u", entrypoint=("/e",), labels={"a": kind})
            ref = {"base": "base:1", "workspace": "work:1", "toolkit": "tool:1"}[kind]
            request = ImageBuildRequest(ref, f"dir:{tree}", kind, config=config)  # type: ignore[arg-type]
            build_image(self.local, request, lambda step: None)
        self.upper.mkdir(mode=0o755)
        self.spec = SandboxSpec("base:1", workspace="work:1", toolkits=("tool:1",))

    def digests(self, *refs: str) -> tuple[str, ...]:
        return tuple(layer.digest for ref in refs for layer in self.local.catalogue.get(ref).layers)

    def packing(
        self,
        ref: str,
        kind: LayerKind = "workspace",
        spec: SandboxSpec | None = None,
        maker: str = "",
        comment: str = "",
    ) -> Packing:
        spec = spec or self.spec
        refs = [spec.image, *([spec.workspace] if spec.workspace else []), *spec.toolkits]
        request = PackDiffRequest(SANDBOX, ref, kind, comment=comment)
        return Packing(request, spec, self.digests(*refs), os.getuid(), maker or f"step {next(self._numbers)}")

    def pack(self, packing: Packing, stop: Callable[[], None] = lambda: None) -> PackedDiff:
        found = check(self.local, packing)
        if isinstance(found, PackedDiff):
            return found
        return pack(self.local, packing, found, Upper(str(self.upper), None, stop, lambda: None), lambda news: None)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    assert os.listdir(store.local.state_dir + "/building") == []
    kept = set(os.listdir(store.local.layers_dir))
    known = {layer.digest for image in store.local.catalogue.list() for layer in image.layers}
    assert kept == {digest.removeprefix("sha256:") for digest in known}
    store.local.close()


def test_what_each_kind_has(store: Store) -> None:
    (store.upper / "new").write_text("new")
    base, work = store.digests("base:1"), store.digests("work:1")
    for kind, below, config in (
        ("workspace", work, store.local.catalogue.get("work:1").config),
        ("toolkit", (), ImageConfig()),
        ("base", base + work, None),
    ):
        packed = store.pack(store.packing(f"{kind}:2", kind))
        assert tuple(layer.digest for layer in packed.image.layers) == (*below, packed.layer.digest)
        assert (packed.image.kind, packed.image.parent) == (kind, "work:1")
        if config is not None:
            assert packed.image.config == config
    config = store.local.catalogue.get("base:2").config
    assert config.env == {"OF": "workspace", "base": "1", "workspace": "1"}
    assert (config.entrypoint, config.labels) == (("/e",), {"a": "base"})
    alone = store.pack(store.packing("alone:2", "workspace", SandboxSpec("base:1")))
    assert (alone.image.parent, len(alone.image.layers), alone.image.config) == ("base:1", 1, ImageConfig())


def test_of_nothing_there_is_an_image_all_the_same(store: Store) -> None:
    assert store.pack(store.packing("work:2")).image.layers == store.local.catalogue.get("work:1").info().layers
    packed = store.pack(store.packing("tool:2", "toolkit"))
    assert (packed.layer.files, packed.image.layers) == (0, (packed.layer,))


def test_what_a_toolkit_has_too_is_told(store: Store) -> None:
    (store.upper / "toolkit").write_text("changed")
    (store.upper / "workspace").write_text("changed")
    assert store.pack(store.packing("work:2")).in_toolkits == ("/toolkit",)
    assert store.pack(store.packing("tool:2", "toolkit")).in_toolkits == ()


def test_a_step_said_again_finds_its_own_image_and_nobody_elses(store: Store) -> None:
    (store.upper / "new").write_text("new")
    packing = store.packing("work:2")
    first = store.pack(packing)
    (store.upper / "more").write_text("more")
    assert store.pack(packing) == first
    with pytest.raises(AlreadyExistsError):
        store.pack(store.packing("work:2"))
    with pytest.raises(AlreadyExistsError):
        store.pack(store.packing("base:1", maker=packing.maker))
    store.local.remove("work:2", lambda digest: False)
    assert store.pack(packing).layer != first.layer, "its record went with the image"


def test_what_it_was_made_of_is_gone(store: Store) -> None:
    packing = store.packing("work:2")
    for layers in (packing.layers,):
        changed = msgspec.structs.replace(packing.spec, image="gone:1")
        with pytest.raises(ImageNotFoundError):
            store.pack(Packing(packing.asked, changed, layers, 0, "a"))
        another = msgspec.structs.replace(packing.spec, image="tool:1")
        with pytest.raises(ConflictError):
            store.pack(Packing(packing.asked, another, layers[:2], 0, "a"))


def test_there_may_not_be_too_many_layers(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_module, "MAX_LAYERS", 3)
    with pytest.raises(InvalidArgumentError, match="layers"):
        store.pack(store.packing("work:2"))
    store.pack(store.packing("tool:2", "toolkit"))


def test_history_says_what_the_caller_says_of_it(store: Store) -> None:
    (store.upper / "new").write_text("new")
    store.pack(store.packing("base:2", "base", comment="RUN make"))
    (store.upper / "new").write_text("newer")
    store.pack(store.packing("base:3", "base"))
    told = [entry.made_by for ref in ("base:2", "base:3") for entry in history(store.local.catalogue, ref).entries]
    assert (told[2], told[5]) == ("RUN make", f"packed from sandbox {SANDBOX} (work:1)")
    with pytest.raises(InvalidArgumentError, match="comment"):
        store.pack(store.packing("base:4", comment="x" * (MAX_MADE_BY + 1)))


def test_where_its_images_layers_lie_in_registries_is_handed_on(store: Store) -> None:
    catalogue = store.local.catalogue
    blob = PulledBlob("sha256:b", 5, "sha256:d", "tar")
    for ref in ("base:1", "work:1", "tool:1"):
        (digest,) = store.digests(ref)
        remember(catalogue, ref, "host", [], [Origin(digest, b"", f"name/{ref}", (blob,))])
    (store.upper / "new").write_text("new")
    for kind, expected in (("base", ["base:1", "work:1"]), ("workspace", ["work:1"]), ("toolkit", [])):
        store.pack(store.packing(f"{kind}:2", kind))  # type: ignore[arg-type]
        layers = store.digests(f"{kind}:2")
        found = [find(catalogue, f"{kind}:2", digest, "host", b"") for digest in layers]
        assert [origin.name.removeprefix("name/") for each in found for origin in each] == expected


class GivenUpError(Exception):
    pass


@pytest.mark.parametrize("calls", [1, 2, 4])
def test_one_that_is_given_up_leaves_nothing(store: Store, calls: int) -> None:
    for number in range(10):
        (store.upper / str(number)).write_bytes(os.urandom(400_000))
    left = calls

    def stop() -> None:
        nonlocal left
        left -= 1
        if not left:
            raise GivenUpError

    with pytest.raises(GivenUpError):
        store.pack(store.packing("work:2"), stop)
    assert not store.local.catalogue.exists("work:2")


def test_a_full_disk_is_told_and_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (store.upper / "new").write_text("new")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for where, name in ((os, "fsync"), (os, "rename")):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, full)
            with pytest.raises(CapacityError):
                store.pack(store.packing("work:2"))
        assert not store.local.catalogue.exists("work:2")
    monkeypatch.setattr(catalogue_module.history, "record", full)
    with pytest.raises(CapacityError):
        store.pack(store.packing("work:2"))
