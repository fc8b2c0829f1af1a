"""Trees for tests of layers: a strategy that draws them, and one common description of a tree, whether it is a model,
an image read back or a mounted directory."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3
from hypothesis import strategies as st

from dsec.store.build import LayerBuild
from dsec.store.digest import layer_digest
from dsec.store.erofs.reader import Image, read_file
from dsec.store.sources import BytesContent, Entry, HardLink, SourceItem
from dsec.store.tree import Node

Description = dict[bytes, tuple[Any, ...]]
"""path → (mode, uid, gid, mtime_ns, nlink, rdev, xattrs, target or (size, hash of the content), other names)"""

Build = Callable[..., LayerBuild]

BLOCK = 4096
ACL = b"\x02\0\0\0" + b"".join(
    tag.to_bytes(2, "little") + permissions.to_bytes(2, "little") + number.to_bytes(4, "little")
    for tag, permissions, number in [
        (1, 7, 0xFFFFFFFF),
        (2, 5, 1234),
        (4, 5, 0xFFFFFFFF),
        (8, 4, 65535),
        (16, 5, 0xFFFFFFFF),
        (32, 0, 0xFFFFFFFF),
    ]
)
CAPABILITY_V2 = bytes.fromhex("0100000200040000000000000000000000000000")
CAPABILITY_V3 = bytes.fromhex("01000003000400000000000000000000000000000010") + b"\0\0"


@dataclass
class Member:
    """One name of a model tree; `link` is the path of the file it is another name of."""

    path: bytes
    mode: int
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    rdev: int = 0
    target: bytes = b""
    content: bytes = b""
    link: bytes | None = None

    def item(self) -> SourceItem:
        if self.link is not None:
            return HardLink(self.path, self.link)
        node = Node(
            self.mode,
            uid=self.uid,
            gid=self.gid,
            mtime_ns=self.mtime_ns,
            xattrs=self.xattrs,
            rdev=self.rdev,
            target=self.target,
        )
        return Entry(self.path, node, BytesContent(self.content) if stat.S_ISREG(self.mode) else None)


def items(members: Iterable[Member]) -> list[SourceItem]:
    return [member.item() for member in members]


def describe_members(members: list[Member]) -> Description:
    by_path = {member.path: member for member in members}
    groups: dict[bytes, set[bytes]] = {}
    for member in members:
        groups.setdefault(member.path if member.link is None else member.link, set()).add(member.path)
    found: Description = {}
    for member in members:
        first = member if member.link is None else by_path[member.link]
        names = groups[first.path]
        if stat.S_ISDIR(first.mode):
            inside = [m for m in members if m.path and m.path.rpartition(b"/")[0] == member.path]
            links = 2 + sum(stat.S_ISDIR(m.mode) for m in inside if m.link is None)
        else:
            links = len(names)
        body: Any = None
        if stat.S_ISREG(first.mode):
            body = (len(first.content), hashlib.sha256(first.content).hexdigest())
        elif stat.S_ISLNK(first.mode):
            body = first.target
        found[member.path] = (
            first.mode,
            first.uid,
            first.gid,
            first.mtime_ns,
            links,
            first.rdev,
            tuple(sorted(first.xattrs)),
            body,
            tuple(sorted(names - {member.path})),
        )
    return found


def describe_image(build: LayerBuild) -> Description:
    """What the reader finds in the two files."""
    with open(build.metadata_path, "rb") as file:
        image = Image(file.read())
    rows: list[tuple[bytes, int, tuple[Any, ...]]] = []
    names: dict[int, set[bytes]] = {}
    data = os.open(build.data_path, os.O_RDONLY)
    try:
        for path, node, number in image.walk():
            body: Any = None
            if stat.S_ISREG(node.mode):
                digest = hashlib.sha256()
                for piece in read_file(data, node):
                    digest.update(piece)
                body = (node.size, digest.hexdigest())
            elif stat.S_ISLNK(node.mode):
                body = node.target
            names.setdefault(number, set()).add(path)
            head = (node.mode, node.uid, node.gid, node.mtime_ns, node.nlink, node.rdev, node.xattrs, body)
            rows.append((path, number, head))
    finally:
        os.close(data)
    assert image.inodes == build.inodes == len(names)
    return {path: (*head, tuple(sorted(names[number] - {path}))) for path, number, head in rows}


def describe_directory(top: str | os.PathLike[str]) -> Description:
    """What the kernel shows below `top`."""
    root = os.fsencode(top)
    rows: list[tuple[bytes, tuple[int, int], tuple[Any, ...]]] = []
    names: dict[tuple[int, int], set[bytes]] = {}
    pending = [b""]
    while pending:
        path = pending.pop()
        full = root + b"/" + path if path else root
        status = os.lstat(full)
        xattrs = tuple(
            (os.fsencode(name), os.getxattr(full, name, follow_symlinks=False))
            for name in sorted(os.listxattr(full, follow_symlinks=False))
        )
        body: Any = None
        if stat.S_ISDIR(status.st_mode):
            pending.extend(path + b"/" + name if path else name for name in os.listdir(full))
        elif stat.S_ISREG(status.st_mode):
            with open(full, "rb") as file:
                body = (status.st_size, hashlib.file_digest(file, "sha256").hexdigest())
        elif stat.S_ISLNK(status.st_mode):
            body = os.readlink(full)
        links = status.st_nlink
        if stat.S_ISDIR(status.st_mode) and links == 1:
            # some file systems do not count sub-directories
            links = 2 + sum(entry.is_dir(follow_symlinks=False) for entry in os.scandir(full))
        identity = (status.st_dev, status.st_ino)
        names.setdefault(identity, set()).add(path)
        head = (
            status.st_mode,
            status.st_uid,
            status.st_gid,
            status.st_mtime_ns,
            links,
            status.st_rdev,
            xattrs,
            body,
        )
        rows.append((path, identity, head))
    return {path: (*head, tuple(sorted(names[identity] - {path}))) for path, identity, head in rows}


def check_files(build: LayerBuild) -> None:
    """Sizes and digests of a build are those of its files."""
    metadata = Path(build.metadata_path).read_bytes()
    assert len(metadata) == build.metadata_size
    assert len(metadata) % 4096 == 0
    assert hashlib.sha256(metadata).digest() == build.metadata_digest
    assert os.stat(build.data_path).st_size == build.data_size
    assert build.data_size % 4096 == 0
    with open(build.data_path, "rb") as file:
        pieces = iter(lambda: file.read(build.chunk_size), b"")
        assert tuple(blake3(piece).digest() for piece in pieces) == build.chunk_digests
    assert layer_digest(build.metadata_digest, build.chunk_digests) == build.layer_digest


def check_fsck(build: LayerBuild) -> None:
    """erofs-utils, where installed, find nothing wrong."""
    if shutil.which("fsck.erofs") is None:
        return
    command = ["fsck.erofs", f"--device={build.data_path}", build.metadata_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed * 1_000_003 + size).randbytes(size)


_NAMES = st.one_of(
    st.binary(min_size=1, max_size=12),
    st.sampled_from([b"!", b"-", b".a", b"..a", b"...", b"a", b"ab", b"a.", b"\xff", b"\x01", b"\xc3\xbc", b"n" * 255]),
).filter(lambda name: name not in (b".", b"..") and b"/" not in name and b"\0" not in name)

_SIZES = st.one_of(
    st.sampled_from([0, 1, 4095, 4096, 4097, 8192, 12288, 262143, 262144, 262145, 262144 + 4096, 700_000]),
    st.integers(0, 40_000),
)


@st.composite
def _contents(draw: st.DrawFn) -> bytes:
    size = draw(_SIZES)
    content = bytearray(noise(size, draw(st.integers(0, 3))))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, max(size - 1, 0)))
        if draw(st.booleans()):
            start -= start % BLOCK
        length = draw(st.sampled_from([1, 4096, 8192, 16384, 300_000]))
        end = min(start + length, size)
        content[start:end] = bytes(end - start)
    return bytes(content)


_VALUES = st.one_of(st.binary(max_size=20), st.sampled_from([b"", b"x" * 300, noise(5000), noise(65_000)]))
_IDS = st.sampled_from([0, 0, 1, 1000, 65_535])
_TIMES = st.one_of(
    st.just(1_600_000_000_123_456_789),
    st.integers(-(10**18), 4 * 10**18),
    st.sampled_from([0, -1, -1_000_000_000, 2**31 * 10**9, 2**33 * 10**9 + 999_999_999]),
)
_KINDS = st.sampled_from(
    [stat.S_IFREG] * 5
    + [stat.S_IFDIR] * 4
    + [stat.S_IFLNK] * 3
    + [stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK]
)


@st.composite
def _xattrs(draw: st.DrawFn, kind: int) -> tuple[tuple[bytes, bytes], ...]:
    found: dict[bytes, bytes] = {}
    prefixes = [b"trusted.", b"security."]
    if kind in (stat.S_IFREG, stat.S_IFDIR):
        prefixes.append(b"user.")
        if draw(st.integers(0, 9)) == 0:
            found[b"system.posix_acl_access"] = ACL
        if kind == stat.S_IFDIR and draw(st.integers(0, 9)) == 0:
            found[b"system.posix_acl_default"] = ACL
    if kind == stat.S_IFREG and draw(st.integers(0, 9)) == 0:
        found[b"security.capability"] = CAPABILITY_V2
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 3]))):
        name = draw(st.sampled_from(prefixes)) + draw(st.sampled_from([b"a", b"note", b"long" * 30, b"\xc3\xbc"]))
        found[name] = draw(_VALUES)
    return tuple(found.items()) if sum(map(len, found.values())) < 150_000 else ()


@st.composite
def trees(draw: st.DrawFn, most: int = 25) -> list[Member]:
    """A tree with up to `most` names, of every kind, with hard links, in an order that a source may have."""
    members = [Member(b"", stat.S_IFDIR | 0o755, mtime_ns=draw(_TIMES))]
    directories = [b""]
    linkable: list[bytes] = []
    taken = {b""}
    for _ in range(draw(st.integers(0, most))):
        parent = draw(st.sampled_from(directories))
        name = draw(_NAMES)
        path = parent + b"/" + name if parent else name
        if path in taken or len(path) > 4000:
            continue
        taken.add(path)
        if linkable and draw(st.integers(0, 5)) == 0:
            target = draw(st.sampled_from(linkable))
            members.append(Member(path, 0, link=target))
            continue
        kind = draw(_KINDS)
        member = Member(
            path,
            kind | draw(st.sampled_from([0o644, 0o755, 0o4755, 0o1777, 0o000])),
            uid=draw(_IDS),
            gid=draw(_IDS),
            mtime_ns=draw(_TIMES),
            xattrs=draw(_xattrs(kind)),
        )
        if kind == stat.S_IFDIR:
            directories.append(path)
        else:
            linkable.append(path)
        if kind == stat.S_IFREG:
            member.content = draw(_contents())
        elif kind == stat.S_IFLNK:
            member.target = draw(st.sampled_from([b"a", b"../x/y", b"/abs", b"t" * 300, b"t" * 4000, b"t" * 4095]))
        elif kind in (stat.S_IFCHR, stat.S_IFBLK):
            member.rdev = draw(st.sampled_from([os.makedev(0, 0), os.makedev(1, 3), os.makedev(4095, 0xFFFFF)]))
        members.append(member)
    return members
