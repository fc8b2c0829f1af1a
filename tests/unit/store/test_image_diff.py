"""What turns one image into another."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from layer_stacks import Plan, items, stacks, take
from layer_trees import noise

from dsec.store.diff import diff_images
from dsec.store.flatten import Flattened, walk
from dsec.store.local import LocalStore, Taken
from dsec.store.merge import merge_layers
from dsec.store.records import ImageRecord, LayerRecord
from dsec.store.sources import BytesContent, Entry, HardLink, Opaque, SourceItem, Whiteout
from dsec.store.tree import Node, printable
from libdsec.protocol.environment import ImageConfig
from libdsec.protocol.errors import ImageNotFoundError, IntegrityError
from libdsec.protocol.images import Change

REG = stat.S_IFREG | 0o644
DIR = stat.S_IFDIR | 0o755


def publish(store: LocalStore, ref: str, *layers: LayerRecord) -> None:
    store.publish_image(ImageRecord(ref, "base", layers, ImageConfig(), 1.0))


def diff(store: LocalStore, a: str = "a:1", b: str = "b:1") -> list[tuple[str, str, str]]:
    return [(c.kind, c.path, c.type) for c in diff_images(store, a, b, lambda: None)]


def file(path: bytes, content: bytes = b"x", **options: Any) -> SourceItem:
    return Entry(path, Node(REG, **options), BytesContent(content))


def test_all_kinds_of_changes_in_the_order_of_paths(store: LocalStore, taken: Taken) -> None:
    base = [
        *(file(b"same"), file(b"time"), file(b"mode"), file(b"bytes", b"one"), file(b"gone"), file(b"turned")),
        *(Entry(b"dir", Node(DIR)), file(b"dir/in"), file(b"dir-x"), Entry(b"old", Node(DIR)), file(b"old/in")),
        *(Entry(b"link", Node(stat.S_IFLNK | 0o777, target=b"a")), file(b"large", noise(900_000))),
    ]
    upper = [
        *(file(b"time", mtime_ns=5), Entry(b"mode", Node(REG | 0o111), BytesContent(b"x")), file(b"bytes", b"two")),
        *(Whiteout(b"gone"), Whiteout(b"old"), Entry(b"turned", Node(DIR)), file(b"turned/new")),
        *(Opaque(b"dir"), file(b"\xff"), Entry(b"link", Node(stat.S_IFLNK | 0o777, target=b"b"))),
        file(b"large", noise(900_000)[:-1] + b"!"),
    ]
    low, high = take(store, taken, base), take(store, taken, upper)
    publish(store, "a:1", low)
    publish(store, "b:1", low, high)
    assert diff(store) == [
        ("changed", "/bytes", "file"),
        ("removed", "/dir/in", "file"),
        ("removed", "/gone", "file"),
        ("changed", "/large", "file"),
        ("changed", "/link", "symlink"),
        ("changed", "/mode", "file"),
        ("removed", "/old", "directory"),
        ("changed", "/turned", "directory"),
        ("added", "/turned/new", "file"),
        ("added", r"/\xff", "file"),
    ]
    back = diff(store, "b:1", "a:1")
    assert ("added", "/old/in", "file") in back
    assert ("changed", "/turned", "file") in back
    assert not any(path == "/turned/new" for _, path, _ in back)


def test_sizes_are_of_what_is_there_now(store: LocalStore, taken: Taken) -> None:
    publish(store, "a:1", take(store, taken, [file(b"f", b"123"), file(b"g")]))
    publish(store, "b:1", take(store, taken, [file(b"f", b"12345")]))
    assert [(c.path, c.size) for c in diff_images(store, "a:1", "b:1", lambda: None)] == [("/f", 5), ("/g", 0)]


def test_equal_contents_in_other_places_are_the_same(store: LocalStore, taken: Taken) -> None:
    sparse = BytesContent(noise(4096), size=1 << 22, extents=[(1 << 21, 4096)])
    one = [file(b"large", noise(700_000)), Entry(b"sparse", Node(REG), sparse), file(b"small", b"s")]
    again = BytesContent(noise(4096), size=1 << 22, extents=[(1 << 21, 4096)])
    other = [file(b"first", noise(5000)), file(b"small", b"s"), file(b"large", noise(700_000))]
    other.append(Entry(b"sparse", Node(REG), again))
    publish(store, "a:1", take(store, taken, one))
    publish(store, "b:1", take(store, taken, other))
    assert diff(store) == [("added", "/first", "file")]


def test_whole_chunks_are_compared_without_reading_them(store: LocalStore, taken: Taken) -> None:
    layers = [take(store, taken, [file(b"f", noise(1 << 20)), *more]) for more in ([], [Entry(b"d", Node(DIR))])]
    for layer in layers:
        with open(layer.data, "r+b") as data:
            data.write(b"damage")
    publish(store, "a:1", layers[0])
    publish(store, "b:1", layers[1])
    assert diff(store) == [("added", "/d", "directory")]
    third = take(store, taken, [file(b"f", noise((1 << 20) - 1) + b"x"), file(b"g", noise(1000))])
    publish(store, "c:1", third)
    assert diff(store, "a:1", "c:1") == [("changed", "/f", "file"), ("added", "/g", "file")]


def test_bytes_that_are_read_are_checked(store: LocalStore, taken: Taken) -> None:
    layers = [take(store, taken, [file(b"f", noise(5000)), *more]) for more in ([], [file(b"g")])]
    with open(layers[0].data, "r+b") as data:
        data.write(b"damage")
    publish(store, "a:1", layers[0])
    publish(store, "b:1", layers[1])
    with pytest.raises(IntegrityError, match="chunk 0"):
        diff(store)


def test_no_image_is_no_difference(store: LocalStore, taken: Taken) -> None:
    publish(store, "a:1", take(store, taken, [file(b"f"), HardLink(b"g", b"f")]))
    assert diff(store, "a:1", "a:1") == []
    with pytest.raises(ImageNotFoundError, match="none:1"):
        diff(store, "a:1", "none:1")


class StopError(Exception):
    pass


def test_its_reader_may_stop_it(store: LocalStore, taken: Taken) -> None:
    def stop() -> None:
        raise StopError

    publish(store, "a:1", take(store, taken, [file(b"f")]))
    publish(store, "b:1", take(store, taken, [file(b"g")]))
    with pytest.raises(StopError):
        list(diff_images(store, "a:1", "b:1", stop))


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(stacks(3), stacks(2))
def test_a_stack_against_another(store: LocalStore, taken: Taken, old: list[Plan], new: list[Plan]) -> None:
    """Against its own merge there is none; against another one it is what a comparison of everything finds."""
    a = [take(store, taken, items(plan)) for plan in old]
    b = [*a[:1], *(take(store, taken, items(plan)) for plan in new)]
    for ref, layers in (("a:1", a), ("b:1", b), ("m:1", merge_layers(store, a, 1 << 40, lambda _: None, taken))):
        publish(store, ref, *layers)
    try:
        assert diff(store, "a:1", "m:1") == []
        assert sorted(found(store, "a:1", "b:1")) == sorted(expected(a, b))
    finally:
        for ref in ("a:1", "b:1", "m:1"):
            store.remove(ref, lambda _: False)


def found(store: LocalStore, a: str, b: str) -> list[tuple[str, str]]:
    changes: list[Change] = list(diff_images(store, a, b, lambda: None))
    return [(change.kind, change.path) for change in changes]


def expected(a: list[LayerRecord], b: list[LayerRecord]) -> Iterator[tuple[str, str]]:
    before, after = described(a), described(b)
    for path in before.keys() - after.keys():
        above = path.rpartition(b"/")[0]
        if above in after and stat.S_ISDIR(after[above][0]):
            yield "removed", printable(path)
    for path, row in after.items():
        if path not in before:
            yield "added", printable(path)
        elif before[path] != row:
            yield "changed", printable(path)


def described(layers: list[LayerRecord]) -> dict[bytes, tuple[Any, ...]]:
    flat = Flattened(layers)
    rows = {}
    for item in flat.entries():
        if isinstance(item, Entry):
            node = item.node
            content = b""
            if item.content is not None:
                buffer = bytearray(item.content.size)
                extents = item.content.extents if item.content.extents is not None else [(0, item.content.size)]
                for start, length in extents:
                    view = memoryview(buffer)[start : start + length]
                    while view:
                        view = view[item.content.readinto(view) :]
                content = bytes(buffer)
            rows[item.path] = (node.mode, node.uid, node.gid, node.rdev, node.target, node.xattrs, content)
        elif isinstance(item, HardLink):
            rows[item.path] = rows[item.target]
    assert rows.keys() == {path for path, _ in walk(flat.root)}
    return rows
