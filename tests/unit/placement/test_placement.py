"""Filter, then rank by power of k choices."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dsec.iam import Authority, Peer
from dsec.placement import FILTERS, Placement, place
from libdsec.protocol.errors import NoEligibleNodeError, PermissionDeniedError, UnsupportedOperationError
from libdsec.protocol.nodes import NodeStatus
from libdsec.protocol.spec import Requests, SandboxSpec

SPEC = SandboxSpec("tiny:1", requests=Requests(100, 10))


def node(name: str, **changes: Any) -> NodeStatus:
    values: dict[str, Any] = {
        "name": name,
        "edge_prefix": name,
        "backends": ("container",),
        "memory_bytes": 1000,
        "memory_requested": 0,
        "pids": 100,
        "pids_requested": 0,
        "sandboxes": 0,
        "healthy": True,
    }
    return NodeStatus(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"healthy": False, "reason": "draining"}, "healthy"),
        ({"memory_requested": 901}, "memory"),
        ({"pids_requested": 91}, "pids"),
    ],
)
def test_the_filter_that_left_none_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(NoEligibleNodeError) as caught:
        place([node("a", **changes), node("b", **changes)], SPEC, random.Random(1))
    assert caught.value.details == {"filter": named, "nodes": 2}
    assert named in {f.name for f in FILTERS}


def test_no_node_and_no_such_backend() -> None:
    with pytest.raises(NoEligibleNodeError):
        place([], SPEC, random.Random(1))
    with pytest.raises(UnsupportedOperationError, match="container"):
        place([node("a")], SandboxSpec("tiny:1", backend="microvm"), random.Random(1))
    mixed = [node("a", healthy=False, backends=("microvm",)), node("b")]
    with pytest.raises(NoEligibleNodeError) as caught:
        place(mixed, SandboxSpec("tiny:1", backend="microvm"), random.Random(1))
    assert caught.value.details["filter"] == "backend"


def test_the_emptier_of_two_wins_by_its_scarcer_resource() -> None:
    full, empty = node("full", pids_requested=80), node("empty", memory_requested=500)
    assert place([full, empty], SPEC, random.Random(1)) is empty


def test_a_burst_does_not_overfill_a_view_that_has_not_caught_up() -> None:
    view = (node("a"), node("b"))
    placement = Placement(lambda: view, random.Random(1))
    names = [placement.place(SPEC) for _ in range(20)]
    assert sorted(names) == ["a"] * 10 + ["b"] * 10
    with pytest.raises(NoEligibleNodeError):
        placement.place(SPEC)


def test_a_new_view_is_believed() -> None:
    views = [(node("a"),), (node("a", memory_requested=900),)]
    placement = Placement(lambda: views[0], random.Random(1))
    for _ in range(10):
        placement.place(SPEC)
    views.pop(0)
    assert placement.place(SPEC) == "a"


def test_load_spreads_over_many_nodes() -> None:
    view = tuple(node(f"n{number}") for number in range(20))
    placement = Placement(lambda: view, random.Random(7))
    counts: dict[str, int] = {}
    for _ in range(100):
        name = placement.place(SPEC)
        counts[name] = counts.get(name, 0) + 1
    assert max(counts.values()) <= 9


def test_only_root_and_the_servers_own_user_may() -> None:
    authority = Authority(own_uid=1000)
    for uid in (0, 1000):
        authority.authenticate(Peer(1, uid, uid)).require("admin", "image.remove")
    with pytest.raises(PermissionDeniedError):
        authority.authenticate(Peer(1, 1001, 0))
    stranger = authority.authenticate(Peer(1, 0, 0))._replace(permissions=frozenset())
    with pytest.raises(PermissionDeniedError, match="exec"):
        stranger.require("use", "exec")
