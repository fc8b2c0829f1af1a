"""A store with layers built from small trees written on the spot."""

from __future__ import annotations

import os
from pathlib import Path

from dsec.store.build import build_layer
from dsec.store.local import LocalStore
from dsec.store.records import ImageRecord, LayerRecord
from dsec.store.sources import DirectorySource
from libdsec.protocol.environment import ImageConfig, LayerKind

Content = dict[str, str | None]
"""Path → text of a file, `-> target` of a link, None of a directory."""


def write_tree(root: Path, content: Content) -> Path:
    root.mkdir(parents=True)
    for path, text in content.items():
        at = root / path
        if text is None:
            at.mkdir(parents=True, exist_ok=True)
            continue
        at.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            at.symlink_to(text[3:])
        else:
            at.write_text(text)
        os.utime(at, (0, 0), follow_symlinks=False)
    for directory, _, _ in os.walk(root):
        os.utime(directory, (0, 0))
    return root


def stock(
    store: LocalStore,
    scratch: Path,
    ref: str,
    content: Content,
    kind: LayerKind = "base",
    config: ImageConfig = ImageConfig(),  # noqa: B008
    at: float = 1.0,
) -> ImageRecord:
    """Publish an image of one layer with that content."""
    number = len(list(scratch.iterdir())) if scratch.exists() else 0
    tree = write_tree(scratch / f"tree{number}", content)
    with store.build_directory() as directory:
        build = build_layer(DirectorySource(tree), directory, "layer")

        def image(layer: LayerRecord) -> ImageRecord:
            return ImageRecord(ref, kind, (layer,), config, at)

        return store.publish(image, build)
