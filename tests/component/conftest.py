"""A directory for the sockets of a platform in this process."""

from __future__ import annotations

import pytest


@pytest.fixture
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Short: the path of a Unix socket has 107 bytes at most."""
    return str(tmp_path_factory.mktemp("n"))
