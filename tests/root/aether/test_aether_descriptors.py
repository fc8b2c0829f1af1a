"""Descriptors that the fork server keeps for its edge."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig import ForkServer, aether_binary

from libdsec.protocol.errors import CapacityError, InvalidArgumentError, NotFoundError

pytestmark = pytest.mark.needs("root", "aether")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    server = ForkServer(aether_binary(), tmp_path)
    try:
        yield server
    finally:
        server.close()


def hold(server: ForkServer, key: str, content: bytes) -> None:
    """A pipe with that in it, which nobody else has."""
    read, write = os.pipe()
    try:
        os.write(write, content)
        server.peer.call("descriptor.hold", {"key": key}, (read,))
    finally:
        os.close(read)
        os.close(write)


def taken(server: ForkServer, key: str) -> bytes:
    (descriptor,) = server.peer.call("descriptor.take", {"key": key}).descriptors
    try:
        return os.read(descriptor, 100)
    finally:
        os.close(descriptor)


def test_they_outlive_the_edge(server: ForkServer) -> None:
    hold(server, "group", b"kept")
    server.peer.close()
    server.peer = server.connect()
    assert taken(server, "group") == b"kept"
    assert taken(server, "group") == b""
    hold(server, "group", b"another")
    assert taken(server, "group") == b"another"


def test_one_that_is_dropped_is_closed(server: ForkServer) -> None:
    hold(server, "group", b"kept")
    server.peer.call("descriptor.drop", {"key": "group"})
    for method in ("descriptor.take", "descriptor.drop"):
        with pytest.raises(NotFoundError):
            server.peer.call(method, {"key": "group"})


def test_what_cannot_be_kept_is_refused(server: ForkServer) -> None:
    with pytest.raises(InvalidArgumentError):
        server.peer.call("descriptor.hold", {"key": "group"})
    for key in ("", "k" * 65):
        with pytest.raises(InvalidArgumentError):
            hold(server, key, b"")
    for number in range(8):
        hold(server, str(number), b"")
    with pytest.raises(CapacityError):
        hold(server, "another", b"")
