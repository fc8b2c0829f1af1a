"""Ids in range in every place that holds one, and attributes that must not come in."""

from __future__ import annotations

import stat
import struct

import pytest
from layer_trees import ACL, CAPABILITY_V2, CAPABILITY_V3

from dsec.store.rules import Rules
from dsec.store.tree import Node
from libdsec.protocol.errors import InvalidArgumentError

REG = stat.S_IFREG | 0o644


def applied(node: Node, rules: Rules | None = None) -> Node:
    (rules or Rules()).apply(b"some/path", node)
    return node


def acl_of(number: int) -> bytes:
    return struct.pack("<IHHI", 2, 2, 7, number)


@pytest.mark.parametrize(
    ("node", "what"),
    [
        (Node(REG, uid=65_536), "owner id 65536"),
        (Node(REG, gid=1 << 31), "group id"),
        (Node(REG, uid=-1), "owner id -1"),
        (Node(REG, xattrs=((b"system.posix_acl_access", acl_of(65_536)),)), "access control list id 65536"),
        (Node(REG, xattrs=((b"system.posix_acl_default", acl_of(100_000)),)), "access control list"),
        (Node(REG, xattrs=((b"security.capability", CAPABILITY_V3[:20] + b"\0\0\1\0"),)), "capability root id 65536"),
    ],
)
def test_an_id_out_of_range_is_an_error_naming_the_path(node: Node, what: str) -> None:
    with pytest.raises(InvalidArgumentError, match=what) as caught:
        applied(node)
    assert caught.value.details["path"] == "/some/path"
    assert caught.value.details["limit"] == 65_535


def test_a_map_is_asked_about_every_id() -> None:
    rules = Rules(lambda number: number - 100_000)
    capability = CAPABILITY_V3[:20] + struct.pack("<I", 100_007)
    node = Node(
        REG,
        uid=100_001,
        gid=165_535,
        xattrs=((b"system.posix_acl_access", acl_of(100_003)), (b"security.capability", capability)),
    )
    applied(node, rules)
    assert (node.uid, node.gid) == (1, 65_535)
    assert dict(node.xattrs)[b"system.posix_acl_access"] == acl_of(3)
    assert dict(node.xattrs)[b"security.capability"][20:] == struct.pack("<I", 7)
    with pytest.raises(InvalidArgumentError, match="mapped from 3"):
        applied(Node(REG, uid=3), rules)


def test_what_names_nobody_is_left_alone() -> None:
    xattrs = ((b"security.capability", CAPABILITY_V2), (b"system.posix_acl_access", ACL), (b"user.a", b"b"))
    assert applied(Node(REG, xattrs=xattrs)).xattrs == xattrs


def test_overlay_attributes_are_dropped_unless_kept() -> None:
    xattrs = ((b"trusted.overlay.redirect", b"/etc"), (b"trusted.overlay.opaque", b"y"), (b"trusted.mine", b"1"))
    assert applied(Node(REG, xattrs=xattrs)).xattrs == ((b"trusted.mine", b"1"),)
    assert applied(Node(REG, xattrs=xattrs), Rules(keep_overlay=True)).xattrs == xattrs


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"system.posix_acl_access", b""),
        (b"system.posix_acl_access", b"\1\0\0\0"),
        (b"system.posix_acl_access", ACL + b"x"),
        (b"security.capability", b""),
        (b"security.capability", CAPABILITY_V2 + b"x"),
        (b"security.capability", CAPABILITY_V3[:20]),
        (b"system.nfs4_acl", b"x"),
        (b"user.", b"x"),
        (b"btrfs.compression", b"zstd"),
    ],
)
def test_damaged_or_foreign_attributes_are_errors(name: bytes, value: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="/some/path"):
        applied(Node(REG, xattrs=((name, value),)))
