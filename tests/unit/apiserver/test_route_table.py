"""The route table, the edge's verbs and the vocabulary name the same methods."""

from __future__ import annotations

import msgspec

from dsec.apiserver.routes import ROUTES
from dsec.edge.verbs import VERBS
from dsec.iam import Permission
from libdsec.protocol.calls import METHODS, CreateRequest
from libdsec.protocol.spec import SandboxSpec


def test_every_method_of_the_vocabulary_has_a_route_and_no_other() -> None:
    assert set(ROUTES) == set(METHODS)


def test_every_method_that_is_not_the_servers_own_has_a_verb() -> None:
    assert set(VERBS) - {"node.status"} == {name for name in METHODS if not name.startswith("server.")}


def test_permissions_are_iams() -> None:
    assert {route.permission for route in ROUTES.values()} == {str(permission) for permission in Permission}


def test_what_changes_something_is_not_open_to_readers() -> None:
    readable = {name for name, route in ROUTES.items() if route.permission == "read"}
    assert readable == {
        *("server.info", "node.doctor", "sandbox.inspect", "sandbox.list", "sandbox.logs"),
        *("image.list", "image.inspect", "image.verify", "image.history", "image.stats"),
        *("log.read", "log.output", "rollout.list", "job.list", "job.inspect"),
    }


def test_the_nodes_own_network_is_for_those_who_may_build() -> None:
    route = ROUTES["sandbox.create"]

    def asks(spec: SandboxSpec) -> str | None:
        return route.further(msgspec.Raw(msgspec.msgpack.encode(CreateRequest(spec))))

    assert route.permission == "use"
    assert asks(SandboxSpec("a:1")) is None
    assert asks(SandboxSpec("a:1", network="host")) == ROUTES["image.build"].permission == "admin"
    assert route.further(msgspec.Raw(b"\xc1")) is None  # the handler refuses it
