"""What a merged layer, and a flattened stack, show is what the kernel shows of the stack."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from layer_stacks import Plan, items, stacks, take
from layer_trees import Description, describe_directory
from mounting import layer_mounted as mounted
from mounting import overlay

from dsec.store.flatten import Flattened
from dsec.store.local import LocalStore
from dsec.store.merge import merge_layers
from dsec.store.records import LayerRecord
from dsec.store.sources import BytesContent, Entry
from dsec.store.verify import check_whole
from remains import DISK_PREFIX

pytestmark = pytest.mark.needs("root", "erofs", "overlay")


def shown(layers: Sequence[LayerRecord], empty: LayerRecord, directory: Path) -> Description:
    """The overlay of `layers` as it is listed and looked at. Link counts are those of layers, and no part of it."""
    with ExitStack() as stack:
        lowers = [
            stack.enter_context(mounted(layer, directory / f"lower{number}"))
            for number, layer in enumerate((empty, *layers))
        ]
        root = stack.enter_context(overlay(lowers[::-1], directory / "overlay"))
        return without_counts(describe_directory(root))


def without_counts(description: Description) -> dict[bytes, tuple[Any, ...]]:
    return {path: (*row[:4], *row[5:]) for path, row in description.items()}


class Rig:
    """A store for one example."""

    def __init__(self, directory: Path, plans: Sequence[Plan]) -> None:
        self.directory = directory
        self.store = LocalStore(str(directory / "state"))
        self.stack = ExitStack()
        self.stack.callback(self.store.close)
        self.taken = self.stack.enter_context(self.store.taking())
        self.empty = take(self.store, self.taken, [])
        self.layers = [take(self.store, self.taken, items(plan)) for plan in plans]

    def shown(self, layers: Sequence[LayerRecord]) -> Description:
        return shown(layers, self.empty, self.directory)

    def merge(self, layers: Sequence[LayerRecord], bound: int = 1 << 40, **options: Any) -> tuple[LayerRecord, ...]:
        merged = merge_layers(self.store, layers, bound, lambda news: None, self.taken, **options)
        for layer in merged:
            check_whole(layer)
        return merged


@contextmanager
def rig(plans: Sequence[Plan]) -> Iterator[Rig]:
    # on a disk: EROFS reads no files that lie in memory
    with tempfile.TemporaryDirectory(prefix=DISK_PREFIX, dir="/var/tmp") as directory:
        made = Rig(Path(directory), plans)
        with made.stack:
            yield made


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(stacks())
@example([[(b"a/b", "file", 2)], [(b"a/b", "whiteout", 0)]])
@example([[(b"a/b", "file", 2)], [(b"a", "file", 1)], [(b"a/c\xff", "file", 1)]])
@example([[(b"a/b/a", "file", 2)], [(b"a", "whiteout", 0)], [(b"a/b/b", "file", 1)]])
@example([[(b"a/b", "file", 2), (b"a/a", "link", 0)], [(b"a/b", "file", 3)]])
@example([[(b"a", "file", 6), (b"b", "file", 13), (b"c\xff", "file", 20)], [(b"a", "whiteout", 0)]])
@example([[(b"a", "file", 6), (b"b", "file", 13)], [(b"b", "whiteout", 0)], [(b"b", "file", 6)]])
def test_a_merged_stack_shows_what_the_stack_shows(plans: list[Plan]) -> None:
    with rig(plans) as made:
        expected = made.shown(made.layers)
        (merged,) = made.merge(made.layers)
        assert made.shown([merged]) == expected
        first, *rest = made.layers
        # what lies below is known, and merged on its own
        half = 1 if len(made.layers) > 1 else 0
        runs = [*made.merge(made.layers[:half]), *made.merge(made.layers[half:], complete=False)]
        assert made.shown(runs) == expected
        again = made.merge(runs)
        assert made.shown(again) == expected
        above = made.merge(rest, complete=False) if rest else ()
        assert made.shown([first, *above]) == expected


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(stacks())
def test_a_bound_makes_several_of_it(plans: list[Plan]) -> None:
    with rig(plans) as made:
        bound = 1 << 19
        runs = made.merge(made.layers, bound)
        assert made.shown(runs) == made.shown(made.layers)
        for run in runs:
            assert run.data_bytes <= bound or run in made.layers


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(stacks())
def test_a_flattened_stack_is_what_the_stack_shows(plans: list[Plan]) -> None:
    with rig(plans) as made:
        expected = made.shown(made.layers)
        flat = take(made.store, made.taken, list(_loaded(made.layers)))
        found = made.shown([flat])
        assert found == expected


def _loaded(layers: Sequence[LayerRecord]) -> Iterator[Any]:
    """Items with their contents in memory: contents of a source are valid only until the next item."""
    for item in Flattened(layers).entries():
        if isinstance(item, Entry) and item.content is not None:
            parts = bytearray()
            buffer = bytearray(1 << 16)
            while got := item.content.readinto(memoryview(buffer)):
                parts += buffer[:got]
            extents = item.content.extents
            item.content = BytesContent(bytes(parts), size=item.content.size, extents=extents)
        yield item
