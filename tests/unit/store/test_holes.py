"""Holes: granules, the search for zeros, and what becomes of them in a file's runs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_trees import Build, Member, describe_directory, describe_image, describe_members, items, noise

from dsec.store.erofs import data as data_module
from dsec.store.erofs.holes import data_parts, granule, outward
from dsec.store.sources import BytesContent, DirectorySource, Entry
from dsec.store.tree import Node

REG = stat.S_IFREG | 0o644
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, 4 * KIB), (1, 4 * KIB), (2 * MIB, 4 * KIB), (2 * MIB + 9000, 8 * KIB), (GIB, 128 * KIB), (8 << 40, 8 * MIB)],
)
def test_a_hole_pays_for_the_indexes(size: int, expected: int) -> None:
    assert granule(size) == expected
    assert expected >= 8 * size / expected


def _slow_parts(content: bytes, unit: int) -> list[tuple[int, int]]:
    parts: list[tuple[int, int]] = []
    for start in range(0, len(content), unit):
        end = min(start + unit, len(content))
        if content[start:end].strip(b"\0"):
            if parts and parts[-1][1] == start:
                parts[-1] = (parts[-1][0], end)
            else:
                parts.append((start, end))
    return parts


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 100, 4095, 4096, 4097, 8192, 16384, 20000]), st.booleans()), max_size=12),
    st.sampled_from([4096, 8192, 16384]),
    st.sampled_from([0, 4096, 12288]),
)
def test_data_parts_finds_the_units_with_data(pieces: list[tuple[int, bool]], unit: int, before: int) -> None:
    content = b"".join((noise(length) if full else bytes(length)) for length, full in pieces)
    content = content[: 256 * KIB - before]
    buffer = bytearray(before) + content
    found = data_parts(buffer, before, len(buffer), unit)
    expected = [(start + before, end + before) for start, end in _slow_parts(content, unit)]
    whole = [(before, len(buffer))] if content else []
    assert (whole if found is None else found) == expected


def test_outward_joins_extents_that_share_a_unit() -> None:
    assert outward([(1, 2), (4000, 200), (20_000, 0), (30_000, 5)], 4096, 30_005) == [(0, 8192), (28_672, 30_005)]


def test_runs_of_zeros_become_holes(build: Build) -> None:
    content = noise(300 * KIB) + bytes(5 * MIB) + noise(100) + bytes(MIB)
    members = [Member(b"", stat.S_IFDIR | 0o755), Member(b"f", REG, content=content)]
    members.append(Member(b"zeros", REG, content=bytes(3 * MIB + 17)))
    members.append(Member(b"small", REG, content=bytes(8192) + b"x" + bytes(20_000)))
    built = build(items(members))
    assert built.data_size <= 2 * built.chunk_size
    assert describe_image(built) == describe_members(members)


def test_a_hole_too_small_for_its_file_is_kept_as_data(build: Build) -> None:
    content = noise(20 * MIB) + bytes(4096) + noise(MIB)
    members = [Member(b"", stat.S_IFDIR | 0o755), Member(b"f", REG, content=content)]
    built = build(items(members))
    assert built.metadata_size == 4096
    assert describe_image(built) == describe_members(members)


@pytest.mark.parametrize("known", [True, False])
def test_a_granule_of_several_chunks(build: Build, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    monkeypatch.setattr(data_module, "granule", lambda size: MIB)
    pieces = [(0, noise(10)), (3 * MIB + 300 * KIB, noise(5000)), (6 * MIB, noise(MIB)), (9 * MIB + 5, noise(90_000))]
    size = 9 * MIB + 100_000
    content = bytearray(size)
    for offset, piece in pieces:
        content[offset : offset + len(piece)] = piece
    source = BytesContent(bytes(content))
    if known:
        source = BytesContent(
            b"".join(piece for _, piece in pieces), size=size, extents=[(at, len(piece)) for at, piece in pieces]
        )
    members = [Member(b"", stat.S_IFDIR | 0o755), Member(b"f", REG, content=bytes(content))]
    built = build([Entry(b"f", Node(REG), source), Entry(b"next", Node(REG), BytesContent(b"next"))])
    found = describe_image(built)
    assert found[b"f"] == describe_members(members)[b"f"]
    assert built.data_size <= 4 * MIB
    assert os.stat(built.data_path).st_blocks * 512 < 2 * MIB


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, 300_000)), max_size=5),
    st.integers(0, 100_000),
    st.integers(0, 2),
)
def test_extents_of_any_shape(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[tuple[int, int]], tail: int, seed: int
) -> None:
    from dsec.store.build import build_layer
    from dsec.store.sources import MemorySource

    content = bytearray()
    extents: list[tuple[int, int]] = []
    for gap, length in gaps:
        content += bytes(gap)
        extents.append((len(content), length))
        content += noise(length, seed)
    content += bytes(tail)
    stored = b"".join(content[at : at + length] for at, length in extents)
    source = MemorySource([Entry(b"f", Node(REG), BytesContent(stored, size=len(content), extents=extents))])
    built = build_layer(source, tmp_path_factory.mktemp("x"), "x")
    expected = describe_members([Member(b"f", REG, content=bytes(content))])
    assert describe_image(built)[b"f"] == expected[b"f"]


def test_holes_of_a_directory(build: Build, tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    with open(top / "sparse", "wb") as file:
        file.truncate(300 * MIB)
        os.pwrite(file.fileno(), noise(10_000), 100 * MIB + 5000)
    (top / "hole").touch()
    os.truncate(top / "hole", 100_000)
    built = build(DirectorySource(top))
    assert built.data_size <= MIB
    assert describe_image(built) == describe_directory(top)
