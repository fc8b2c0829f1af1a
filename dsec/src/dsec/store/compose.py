"""Putting a sandbox's layers together: base, then workspace, then toolkits, the first toolkit lowest.

An overlay merges directories and lets anything else hide what lies below. A toolkit that has a directory where a lower
layer has a file or a symbolic link, or the other way round, would hide a tree (a real /bin over a link to usr/bin takes
every program away): that is an error here, not a surprise later. A workspace may do so, since it is what a sandbox made
of its base.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from libdsec.protocol.environment import ImageConfig, LayerKind
from libdsec.protocol.errors import ConflictError, InvalidArgumentError
from libdsec.protocol.spec import SandboxSpec

from .catalogue import Catalogue
from .listing import CHARACTER_DEVICE, DIRECTORY, Listing
from .records import ImageRecord, LayerRecord
from .tree import printable

MAX_LAYERS = 128
"""Lower directories of one overlay; the kernel's bound is 500."""
MAX_COMPARED = 200_000
"""Entries of a toolkit that are looked for in the layers below."""


@dataclass(frozen=True)
class Composition:
    """What a sandbox is made of."""

    layers: tuple[LayerRecord, ...]
    """Lowest first; none twice."""
    config: ImageConfig


def compose(catalogue: Catalogue, spec: SandboxSpec) -> Composition:
    """The layers and the defaults of a sandbox.

    :raises ImageNotFoundError: an image of that name is not published.
    :raises InvalidArgumentError: an image of the wrong kind, a toolkit named twice, too many layers.
    :raises ConflictError: a toolkit would hide a tree of what lies below.
    """
    base = _of_kind(catalogue, spec.image, "base", "image")
    images = [base]
    if spec.workspace is not None:
        images.append(_of_kind(catalogue, spec.workspace, "workspace", "workspace"))
    if len(set(spec.toolkits)) != len(spec.toolkits):
        raise InvalidArgumentError(f"cannot compose {list(spec.toolkits)}: a toolkit is named twice", field="toolkits")
    for name in spec.toolkits:
        toolkit = _of_kind(catalogue, name, "toolkit", "toolkits")
        below = tuple(layer.metadata for image in images for layer in image.layers)
        hidden = _first_conflict(below, tuple(layer.metadata for layer in toolkit.layers))
        if hidden is not None:
            raise ConflictError(
                f"cannot put toolkit {name} over {', '.join(image.ref for image in images)}: {hidden}; build the "
                "toolkit with the directory where it really is",
                toolkit=name,
                why=hidden,
            )
        images.append(toolkit)
    layers = _without_repeats([layer for image in images for layer in image.layers])
    if len(layers) > MAX_LAYERS:
        raise InvalidArgumentError(
            f"cannot compose {len(layers)} layers: at most {MAX_LAYERS} are possible", field="toolkits"
        )
    return Composition(layers, config_of(images))


def _of_kind(catalogue: Catalogue, ref: str, kind: LayerKind, field: str) -> ImageRecord:
    image = catalogue.get(ref)
    if image.kind != kind:
        raise InvalidArgumentError(
            f"cannot use {ref} as {kind}: it is a {image.kind}, and goes where a {image.kind} is asked for",
            field=field,
            ref=ref,
        )
    return image


def _without_repeats(layers: Sequence[LayerRecord]) -> tuple[LayerRecord, ...]:
    """Keep the highest of equal layers: it has all that the lower one has, and an overlay takes none twice."""
    kept = {layer.digest: layer for layer in reversed(layers)}
    return tuple(reversed(kept.values()))


def config_of(images: Sequence[ImageRecord]) -> ImageConfig:
    """Environments add up, the higher one wins; directory and user are the base's unless the workspace has its own."""
    config = images[0].config
    env = dict(config.env)
    cwd, user = config.cwd, config.user
    default = ImageConfig()
    for image in images[1:]:
        env.update(image.config.env)
        if image.kind == "workspace":
            cwd = image.config.cwd if image.config.cwd != default.cwd else cwd
            user = image.config.user if image.config.user != default.user else user
    return ImageConfig(env, cwd, user)


@functools.lru_cache(maxsize=1024)
def _first_conflict(below: tuple[str, ...], above: tuple[str, ...]) -> str | None:
    """What the layers `above` would hide, in words. Layers never change, so an answer stays true."""
    with ExitStack() as stack:
        lower = [Listing(path) for path in below]
        upper = [Listing(path) for path in above]
        for listing in (*lower, *upper):
            stack.callback(listing.close)
        compared = _Comparison()
        for number, listing in enumerate(upper):
            stacked = [(each, each.root) for each in reversed([*lower, *upper[:number]])]
            if (found := compared.run(listing, stacked)) is not None:
                return found
    return None


class _Comparison:
    def __init__(self) -> None:
        self._compared = 0
        self._pending: list[tuple[int, list[tuple[Listing, int]], bytes]] = []

    def run(self, above: Listing, below: list[tuple[Listing, int]]) -> str | None:
        """Go down only where both sides have a directory: anywhere else nothing can be hidden."""
        self._pending = [(above.root, below, b"")]
        while self._pending:
            if (found := self._look(above, *self._pending.pop())) is not None:
                return found
        return None

    def _look(self, above: Listing, directory: int, below: list[tuple[Listing, int]], path: bytes) -> str | None:
        """Into one directory, which `below` have too, the highest first."""
        lower = [(listing, listing.children(nid)) for listing, nid in below]
        for name, (nid, kind) in above.children(directory).items():
            self._compared += 1
            if self._compared > MAX_COMPARED:
                raise InvalidArgumentError(
                    f"cannot check a toolkit against what lies below: they share more than {MAX_COMPARED} entries",
                    field="toolkits",
                )
            if kind == CHARACTER_DEVICE:
                # hides on purpose, or is a device; neither is a type mixed up
                continue
            where = path + b"/" + name if path else name
            merged: list[tuple[Listing, int]] = []
            for listing, entries in lower:
                if name not in entries:
                    continue
                other, other_kind = entries[name]
                if other_kind == CHARACTER_DEVICE:
                    break
                if (kind == DIRECTORY) != (other_kind == DIRECTORY):
                    if merged:
                        break
                    return _conflict(where, kind)
                if kind != DIRECTORY:
                    break
                merged.append((listing, other))
            if merged:
                self._pending.append((nid, merged, where))
        return None


def _conflict(path: bytes, kind: int) -> str:
    if kind == DIRECTORY:
        return f"its directory {printable(path)} would hide what is no directory below"
    return f"its {printable(path)}, which is no directory, would hide a directory below"
