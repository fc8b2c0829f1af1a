"""A log that begins with a create, and a node to run it again on."""

from __future__ import annotations

import pytest
from logbook import FakeNode, Logbook


@pytest.fixture
def book() -> Logbook:
    made = Logbook()
    made.create()
    return made


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()
