"""Images, read back by our reader and checked by erofs-utils where they are installed."""

from __future__ import annotations

import os
import random
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from layer_trees import (
    ACL,
    CAPABILITY_V2,
    CAPABILITY_V3,
    Build,
    Member,
    check_files,
    check_fsck,
    describe_image,
    describe_members,
    items,
    noise,
    trees,
)

from dsec.store.build import build_layer
from dsec.store.erofs import format as disk
from dsec.store.erofs.reader import Image
from dsec.store.sources import BytesContent, Entry, MemorySource
from dsec.store.tree import Node
from libdsec.protocol.errors import IntegrityError

REG = stat.S_IFREG | 0o644
DIR = stat.S_IFDIR | 0o755


def _round_trip(build: Build, members: list[Member]) -> None:
    assert describe_image(build(items(members))) == describe_members(members)


def test_an_empty_tree(build: Build) -> None:
    built = build([])
    assert describe_image(built) == {b"": (DIR, 0, 0, 0, 2, 0, (), None, ())}
    assert (built.inodes, built.files, built.content_bytes, built.data_size) == (1, 0, 0, 4096)


def test_every_file_type(build: Build) -> None:
    _round_trip(
        build,
        [
            Member(b"", DIR, mtime_ns=7),
            Member(b"dir", DIR | 0o2000, uid=3, gid=65_535, mtime_ns=-1),
            Member(b"dir/file", REG | 0o4000, content=b"hello", mtime_ns=1_700_000_000_123_456_789),
            Member(b"dir/link", stat.S_IFLNK | 0o777, target=b"../elsewhere"),
            Member(b"null", stat.S_IFCHR | 0o666, rdev=os.makedev(1, 3)),
            Member(b"disk", stat.S_IFBLK | 0o600, rdev=os.makedev(259, 70_000)),
            Member(b"pipe", stat.S_IFIFO | 0o600),
            Member(b"socket", stat.S_IFSOCK | 0o700),
            Member(b"whiteout", stat.S_IFCHR),
            Member(b"empty", REG),
        ],
    )


def test_attributes(build: Build) -> None:
    shared = (b"security.selinux", b"system_u:object_r:bin_t:s0\0")
    _round_trip(
        build,
        [
            Member(b"", DIR, xattrs=(shared,)),
            Member(b"a", REG, xattrs=(shared, (b"security.capability", CAPABILITY_V2), (b"user.x", b""))),
            Member(b"b", REG, xattrs=((b"system.posix_acl_access", ACL), (b"user.long", noise(65_535)))),
            Member(b"c", DIR, xattrs=((b"system.posix_acl_default", ACL), (b"trusted.t", b"\0\1"), shared)),
            Member(b"d", REG, xattrs=((b"security.capability", CAPABILITY_V3),), content=noise(9000)),
            Member(b"e", stat.S_IFLNK | 0o777, target=b"t" * 4000, xattrs=(shared, (b"trusted.u", noise(9000)))),
            Member(b"f", REG, xattrs=tuple((b"user.%03d" % n, b"v") for n in range(300)), content=b"f"),
            Member(b"g", REG, xattrs=tuple((b"user.%03d" % n, b"v") for n in range(300)), content=b"g"),
        ],
    )


def test_large_ids(build: Build) -> None:
    """Above 16 bits an inode needs its long form; a map may give ids up to the limit only, so this is the writer's."""
    from dsec.store.erofs.metadata import build_metadata
    from dsec.store.tree import Tree

    tree = Tree()
    tree.insert(b"x", Node(REG, uid=70_000, gid=1 << 31))
    image, _ = build_metadata(tree, 1, b"")
    found = {path: node for path, node, _ in Image(image).walk()}
    assert (found[b"x"].uid, found[b"x"].gid) == (70_000, 1 << 31)


def test_two_hundred_hard_links(build: Build) -> None:
    members = [Member(b"", DIR), Member(b"first", REG, content=noise(300_000)), Member(b"more", DIR)]
    members += [Member(b"more/%d" % n, 0, link=b"first") for n in range(199)]
    built = build(items(members))
    found = describe_image(built)
    assert found == describe_members(members)
    assert found[b"first"][4] == 200
    assert built.files == 1
    assert built.content_bytes == 300_000


def test_a_directory_of_100_000_entries(build: Build) -> None:
    names = [b"entry-%06d" % n for n in range(100_000)]
    built = build(Entry(b"big/" + name, Node(REG)) for name in names)
    image = Image(Path(built.metadata_path).read_bytes())
    (nid,) = [nid for name, nid in image.list(image.root_nid) if name == b"big"]
    listed = [name for name, _ in image.list(nid)]
    assert listed == sorted([*names, b".", b".."])
    assert built.inodes == 100_002


def test_names_around_the_dots_are_in_byte_order(build: Build) -> None:
    members = [Member(b"", DIR)]
    members += [Member(name, REG) for name in (b"!", b"-", b"...", b"..a", b".a", b"/0"[1:], b"\xff", b"\x01")]
    built = build(items(members))
    image = Image(Path(built.metadata_path).read_bytes())
    listed = [name for name, _ in image.list(image.root_nid)]
    assert listed == sorted(listed)
    assert describe_image(built) == describe_members(members)


def test_the_same_tree_gives_the_same_bytes(build: Build) -> None:
    members = [Member(b"", DIR), Member(b"a", REG, content=noise(500_000)), Member(b"b", REG, content=b"b")]
    first, second = build(items(members)), build(items(members))
    assert Path(first.metadata_path).read_bytes() == Path(second.metadata_path).read_bytes()
    assert Path(first.data_path).read_bytes() == Path(second.data_path).read_bytes()
    assert first.layer_digest == second.layer_digest


def test_other_contents_give_another_uuid(build: Build) -> None:
    def uuid(content: bytes) -> bytes:
        built = build(items([Member(b"a", REG, content=content)]))
        return Image(Path(built.metadata_path).read_bytes()).uuid

    assert uuid(b"1") != uuid(b"2")


def test_large_files_begin_on_a_chunk(build: Build) -> None:
    """So that a file gives the same chunks whatever lies beside it."""
    content = noise(1_000_000)
    alone = build([Entry(b"x", Node(REG), BytesContent(content))])
    beside = build(
        [Entry(b"s%d" % n, Node(REG), BytesContent(b"small")) for n in range(9)]
        + [Entry(b"x", Node(REG), BytesContent(content))]
    )
    assert set(alone.chunk_digests[:3]) <= set(beside.chunk_digests)


def test_small_files_share_chunks(build: Build) -> None:
    built = build(Entry(b"f%d" % n, Node(REG), BytesContent(b"x" * (n * 37 % 9000))) for n in range(1000))
    blocks = sum(-(-(n * 37 % 9000) // 4096) for n in range(1000))
    assert built.data_size <= blocks * 4096 + 2 * built.chunk_size


def test_a_small_file_goes_over_into_the_next_chunk_rather_than_leave_much_empty(build: Build) -> None:
    eighth = 256 * 1024 // 8
    wanted = {"0": (4, 0), "1": (3, 4), "2": (2, 8), "3": (5, 10), "4": (6, 16), "5": (4, 22), "6": (1, 7)}
    built = build(
        Entry(name.encode(), Node(REG), BytesContent(noise(size * eighth, size))) for name, (size, _) in wanted.items()
    )
    image = Image(Path(built.metadata_path).read_bytes())
    runs = {path.decode(): node.runs for path, node, _ in image.walk() if path}
    blocks = eighth // 4096
    assert runs == {name: ((0, start * blocks, size * blocks),) for name, (size, start) in wanted.items()}
    assert built.data_size == 26 * eighth


def test_a_damaged_image_is_told(build: Build) -> None:
    built = build(items([Member(b"a", REG, content=b"a")]))
    image = bytearray(Path(built.metadata_path).read_bytes())
    image[1024 + 60] ^= 1
    with pytest.raises(IntegrityError, match="checksum"):
        Image(image)
    with pytest.raises(IntegrityError):
        Image(image[:100])


def test_damage_behind_the_superblock_is_told_or_does_not_matter(build: Build) -> None:
    members = [Member(b"d", DIR), *(Member(b"d/%d" % number, REG, content=noise(5000)) for number in range(30))]
    members += [
        Member(b"d/link", stat.S_IFLNK | 0o777, target=b"t" * 200),
        Member(b"x", REG, xattrs=((b"user.a", b"b"),)),
    ]
    whole = Path(build(items(members)).metadata_path).read_bytes()
    dice = random.Random(1)
    told = set()
    for _ in range(1500):
        image = bytearray(whole)
        for _ in range(dice.randint(1, 3)):
            image[dice.randrange(disk.FIRST_INODE_OFFSET, len(image))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF))
        image[disk.CHECKSUM_OFFSET : disk.CHECKSUM_OFFSET + 4] = bytes(4)
        checksum = disk.crc32c(bytes(image[disk.SUPERBLOCK_OFFSET : disk.BLOCK_SIZE]))
        disk.CHECKSUM.pack_into(image, disk.CHECKSUM_OFFSET, checksum)
        for look in (_walk, _look_up_all):
            try:
                look(Image(image))
            except IntegrityError as error:
                told.add(str(error).partition(":")[2][:20])
    assert len(told) > 5


def _walk(image: Image) -> None:
    for _ in image.walk():
        pass


def _look_up_all(image: Image) -> None:
    """As whoever reads single directories does."""
    for _, nid in image.list(image.root_nid):
        if stat.S_ISDIR(image.node(nid).mode):
            for _, below in image.list(nid):
                image.node(below)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(members=trees())
def test_any_tree_reads_back_as_it_was(members: list[Member]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        built = build_layer(MemorySource(items(members)), directory, "x")
        check_files(built)
        assert describe_image(built) == describe_members(members)
        check_fsck(built)
