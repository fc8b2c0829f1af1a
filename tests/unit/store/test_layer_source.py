"""Layers read back: the same layer again, or a typed error."""

from __future__ import annotations

import hashlib
import os
import random
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from layer_stacks import items as stack_items
from layer_stacks import layer_plans, take
from layer_trees import Member, items, noise, trees

from dsec.store.build import build_layer
from dsec.store.erofs.chunks import MAX_OPEN
from dsec.store.flatten import Flattened
from dsec.store.local import LocalStore, Taken
from dsec.store.records import LayerRecord
from dsec.store.sources import BytesContent, DirectorySource, Entry, HardLink, Opaque, SourceItem, Whiteout
from dsec.store.sources.layer import LayerSource
from dsec.store.tree import Node
from libdsec.protocol.errors import ConflictError, IntegrityError, QuotaExceededError

REG = stat.S_IFREG | 0o644
DIR = stat.S_IFDIR | 0o755

slow_fixture = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def again(store: LocalStore, taken: Taken, layer: LayerRecord) -> LayerRecord:
    with store.build_directory() as directory:
        return taken.take(build_layer(LayerSource(layer), directory, "layer"))


def without_idle_chunks(members: list[Member]) -> list[Member]:
    """A small file of zeros alone may begin a chunk in which nothing comes to lie: the next build has none there."""
    return [m for m in members if not m.content or m.content.strip(b"\0") or len(m.content) >= 262_144]


@slow_fixture
@given(trees())
def test_a_layer_of_a_layer_is_the_same_layer(store: LocalStore, taken: Taken, members: list[Member]) -> None:
    kept = without_idle_chunks(members)
    gone = {m.path for m in members} - {m.path for m in kept}
    kept = [m for m in kept if m.link not in gone and not (stat.S_ISCHR(m.mode) and m.rdev == 0)]
    paths = {m.path for m in kept}
    kept = [m for m in kept if m.link is None or m.link in paths]
    layer = take(store, taken, items(kept))
    assert again(store, taken, layer).digest == layer.digest


@slow_fixture
@given(layer_plans(kinds=("file", "directory", "link", "symlink", "whiteout", "device", "fifo", "socket")))
def test_what_it_hides_comes_along(store: LocalStore, taken: Taken, plan: list[tuple[bytes, str, int]]) -> None:
    layer = take(store, taken, stack_items(plan))
    second = again(store, taken, layer)
    assert second.digest == layer.digest
    wanted = {path for path, kind, _ in plan if kind == "whiteout"}
    found = {item.path for item in LayerSource(layer).entries() if isinstance(item, Whiteout | Opaque)}
    assert found <= wanted | {path for path, kind, _ in plan if kind == "directory"}
    assert {path for path in wanted if not any(other.startswith(path + b"/") for other, _, _ in plan)} <= found


def test_whiteouts_below_an_opaque_directory_say_nothing_new(store: LocalStore, taken: Taken) -> None:
    layer = take(store, taken, [Opaque(b"d"), Whiteout(b"d/x"), Whiteout(b"e/x")])
    hiding = [item for item in LayerSource(layer).entries() if isinstance(item, Whiteout | Opaque)]
    assert [(type(item), item.path) for item in hiding] == [(Opaque, b"d"), (Whiteout, b"e/x")]


def test_more_small_files_than_chunks_may_be_open(store: LocalStore, taken: Taken, tmp_path: Path) -> None:
    """In the order of their places, not of their names."""
    found: list[SourceItem] = []
    for number in range(3 * MAX_OPEN):
        found.append(Entry(b"%03d" % (97 * number % 100), Node(REG), BytesContent(noise(120_000, number))))
    layer = take(store, taken, found)
    assert again(store, taken, layer).digest == layer.digest


def test_two_hundred_links_are_one_file(store: LocalStore, taken: Taken) -> None:
    names = [b"%03d" % number for number in range(200)]
    first = take(
        store, taken, [Entry(names[0], Node(REG), BytesContent(b"x")), *(HardLink(n, b"000") for n in names[1:])]
    )
    second = take(store, taken, [Whiteout(b"000"), Entry(b"001", Node(REG), BytesContent(b"y"))])
    flat = Flattened((first, second))
    children = flat.root.children or {}
    assert len(children) == 199
    groups = {id(node): node.nlink for node in children.values()}
    assert sorted(groups.values()) == [1, 198]
    links = [item for item in flat.entries() if isinstance(item, HardLink)]
    assert len(links) == 197
    assert {link.target for link in links} == {b"002"}


def test_only_so_many_names_become_one_tree(store: LocalStore, taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsec.store.flatten.MAX_ENTRIES", 10)
    layers = [take(store, taken, [Entry(b"%d/%d" % (n, m), Node(REG)) for m in range(6)]) for n in range(2)]
    with pytest.raises(QuotaExceededError, match="14 names"):
        Flattened(layers)
    hiding = take(store, taken, [Entry(b"0", Node(REG))])
    assert len(Flattened([layers[0], hiding, layers[1]]).root.children or ()) == 2


def test_holes_stay_holes(store: LocalStore, taken: Taken, tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    with open(top / "sparse", "wb") as file:
        file.truncate(1 << 30)
        os.pwrite(file.fileno(), noise(5000), 1 << 29)
    with store.build_directory() as directory:
        layer = taken.take(build_layer(DirectorySource(top), directory, "layer"))
    (entry,) = [item for item in LayerSource(layer).entries() if item.path]
    assert isinstance(entry, Entry)
    assert entry.content is not None
    assert entry.content.size == 1 << 30
    assert entry.content.extents is not None
    assert sum(length for _, length in entry.content.extents) < 1 << 20
    assert again(store, taken, layer).digest == layer.digest


def test_a_changed_bit_of_data_is_not_given_out(store: LocalStore, taken: Taken) -> None:
    layer = take(store, taken, [Entry(b"f", Node(REG), BytesContent(noise(600_000)))])
    with open(layer.data, "r+b") as file:
        file.seek(300_000)
        byte = file.read(1)[0]
        file.seek(300_000)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(IntegrityError, match="chunk 1"):
        again(store, taken, layer)


def test_data_that_is_elsewhere_is_to_be_fetched_first(store: LocalStore, taken: Taken) -> None:
    layer = take(store, taken, [Entry(b"f", Node(REG), BytesContent(b"x"))])
    Path(layer.directory, "remote.json").write_text("{}")
    os.unlink(layer.data)
    with pytest.raises(ConflictError, match="dsec image fetch"):
        list(again_entries(layer))


def again_entries(layer: LayerRecord) -> Iterator[bytes]:
    buffer = memoryview(bytearray(1 << 18))
    for item in LayerSource(layer).entries():
        yield item.path
        if isinstance(item, Entry) and item.content is not None:
            while item.content.readinto(buffer):
                pass


def test_a_forged_metadata_image_is_an_error_of_its_own(store: LocalStore, taken: Taken, tmp_path: Path) -> None:
    """Whoever publishes a layer names its digest: that it fits says nothing of what is in it."""
    content: list[SourceItem] = [Entry(b"d", Node(DIR, xattrs=((b"user.a", b"1"),))), Entry(b"e", Node(DIR))]
    for number in range(40):
        path = b"d/%02d" % number
        content.append(
            Entry(path, Node(REG, xattrs=((b"user.a", b"1"), (b"user.b", b"%d" % number))), BytesContent(b"x"))
        )
    content += [
        Entry(b"e/link", Node(stat.S_IFLNK | 0o777, target=b"t" * 100)),
        HardLink(b"e/hard", b"d/01"),
        Whiteout(b"e/w"),
    ]
    layer = take(store, taken, content)
    image = Path(layer.metadata).read_bytes()
    random_source = random.Random(4)
    outcomes = {"fine": 0, "refused": 0}
    for _ in range(400):
        forged = bytearray(image)
        for _ in range(random_source.randint(1, 4)):
            at = random_source.randrange(1152, len(forged))
            forged[at] = random_source.choice([0, 1, 0x7F, 0xFF, random_source.randrange(256)])
        path = tmp_path / "forged.erofs"
        path.write_bytes(forged)
        record = msgspec.structs.replace(layer, metadata=str(path), metadata_digest=hashlib.sha256(forged).hexdigest())
        outcomes[outcome(record)] += 1
    assert outcomes["refused"] > 50


def outcome(layer: LayerRecord) -> str:
    """Data is where the layer's own is: the forged image may point anywhere in it, and at nothing else."""
    try:
        for path in Flattened((layer,)).entries():
            assert len(path.path) <= 4095
    except IntegrityError:
        return "refused"
    return "fine"
