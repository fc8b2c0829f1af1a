"""What lies below an upper: the layers' metadata, asked path by path, so that a small diff over a large image costs
little. The layers are those of a mounted sandbox: their images were verified when they were mounted.
"""

from __future__ import annotations

import stat
from collections import OrderedDict
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from dsec.store.erofs.reader import Image, open_image
from dsec.store.tree import Node, is_opaque, is_whiteout

MAX_REMEMBERED: Final = 4096
"""Directories, that is names of them: a walk comes to all of one directory before it leaves it for good."""


class Lower:
    """A stack of layers as an overlay shows it. Used by one thread, until its `with` is left."""

    def __init__(self, metadata: Sequence[str]) -> None:
        """`metadata`: the images' paths, the lowest layer first."""
        self._directories: OrderedDict[bytes, _Directory] = OrderedDict()
        images = [open_image(path) for path in reversed(metadata)]
        self._root = _Directory([(image, image.root_nid) for image in images])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # the last references to the images, which are mapped as long as there is one
        self._directories.clear()
        self._root = _Directory([])

    def find(self, path: bytes) -> Node | None:
        """What is seen at a path; `children` stay empty. Symbolic links are not followed.

        :raises IntegrityError: an image is damaged.
        """
        if not path or not self._root.layers:
            return self._root.node()
        parent, _, name = path.rpartition(b"/")
        directory = self._directory(parent)
        return None if directory is None else directory.find(name)

    def names(self, path: bytes) -> list[bytes]:
        """Of what is seen in the directory at a path, in order; none where that is no directory."""
        directory = self._directory(path)
        if directory is None:
            return []
        return sorted(name for name in directory.all_names() if directory.find(name) is not None)

    def _directory(self, path: bytes) -> _Directory | None:
        if not path:
            return self._root
        known = self._directories.get(path)
        if known is not None:
            self._directories.move_to_end(path)
            return known
        at: _Directory | None = self._root
        for name in path.split(b"/"):
            at = None if at is None else at.below(name)
        if at is not None:
            self._directories[path] = at
            if len(self._directories) > MAX_REMEMBERED:
                self._directories.popitem(last=False)
        return at


class _Directory:
    """One directory of all layers that have it, the highest first."""

    def __init__(self, layers: list[tuple[Image, int]]) -> None:
        self.layers = layers
        self._names: list[dict[bytes, int]] | None = None

    def node(self) -> Node | None:
        return self.layers[0][0].node(self.layers[0][1]) if self.layers else None

    def find(self, name: bytes) -> Node | None:
        for (image, _), names in zip(self.layers, self._listed(), strict=True):
            if (nid := names.get(name)) is not None:
                node = image.node(nid)
                return None if is_whiteout(node) else node
        return None

    def below(self, name: bytes) -> _Directory | None:
        found: list[tuple[Image, int]] = []
        for (image, _), names in zip(self.layers, self._listed(), strict=True):
            if (nid := names.get(name)) is None:
                continue
            node = image.node(nid)
            if not stat.S_ISDIR(node.mode):
                break
            found.append((image, nid))
            if is_opaque(node):
                break
        return _Directory(found) if found else None

    def all_names(self) -> set[bytes]:
        """Of all layers, whiteouts too."""
        return {name for names in self._listed() for name in names}

    def _listed(self) -> list[dict[bytes, int]]:
        if self._names is None:
            self._names = [
                {name: nid for name, nid in image.list(nid) if name not in (b".", b"..")} for image, nid in self.layers
            ]
        return self._names
