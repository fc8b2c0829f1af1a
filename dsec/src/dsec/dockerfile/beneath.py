"""Files below a directory, reached name by name and never through a link.

A directory that becomes a link after it was looked at cannot lead out: the whole path is walked again each time, by
descriptors, which also lets it be longer than the system takes one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ON_THE_WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Beneath:
    def __init__(self, root: str) -> None:
        """`root` may be reached through links."""
        self._root = root

    @contextmanager
    def directory(self, path: str) -> Iterator[int]:
        """A descriptor to list it by. The root itself is ``.

        :raises OSError: it is not there, or it or what lies on the way is no directory.
        """
        with self.parent(path) as (parent, name):
            descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def parent(self, path: str) -> Iterator[tuple[int, str]]:
        """A descriptor of the directory that has it, and its name there.

        :raises OSError: what lies on the way is not there, or no directory.
        """
        *above, name = path.split("/")
        descriptor = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for each in above:
                inner = os.open(each, _ON_THE_WAY, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor, name or "."
        finally:
            os.close(descriptor)
