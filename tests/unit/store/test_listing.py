"""Names in a layer, read without mounting it."""

from __future__ import annotations

import stat
from contextlib import closing

from layer_trees import Build

from dsec.store.listing import DIRECTORY, Listing
from dsec.store.sources.base import Entry
from dsec.store.tree import Node


def test_a_layer_whose_inodes_share_attributes(build: Build) -> None:
    shared = ((b"user.shared", b"v" * 200),)
    names = [b"dir%d" % number for number in range(50)]
    built = build([Entry(name, Node(stat.S_IFDIR | 0o755, xattrs=shared)) for name in names], check=False)
    with closing(Listing(built.metadata_path)) as listing:
        children = listing.children(listing.root)
        assert sorted(children) == sorted(names)
        assert {kind for _, kind in children.values()} == {DIRECTORY}
