"""What the sandbox that is packed was made of, and what the image that it becomes has beside the new layer."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dsec.store.catalogue import Catalogue
from dsec.store.compose import config_of
from dsec.store.local import Taken
from dsec.store.records import ImageRecord, LayerRecord
from libdsec.protocol.environment import ImageConfig
from libdsec.protocol.errors import ConflictError

from .order import Packing


@dataclass(frozen=True)
class Parts:
    below: tuple[LayerRecord, ...]
    """What the new layer will lie on in its image; lowest first."""
    config: ImageConfig
    stack: tuple[str, ...]
    """The metadata of all that the sandbox's upper lies on; lowest first."""
    toolkits: tuple[str, ...]
    """The metadata of the toolkits among them, where those will lie over the image."""

    def kept(self, taken: Taken) -> tuple[LayerRecord, ...]:
        """`below`, which no removal takes away from now on.

        :raises ConflictError: one was removed meanwhile.
        """
        found = []
        for layer in self.below:
            if (kept := taken.find(layer.digest)) is None:
                raise ConflictError(f"cannot pack: layer {layer.digest} of the sandbox was removed meanwhile")
            found.append(kept)
        return tuple(found)


def parts_of(catalogue: Catalogue, packing: Packing) -> Parts:
    """:raises ImageNotFoundError: the image or workspace that the sandbox was made of is gone.
    :raises ConflictError: under its name there is another one now."""
    spec, kind = packing.spec, packing.asked.kind
    stack = tuple(catalogue.layer(digest).metadata for digest in packing.layers)
    if kind == "toolkit":
        return Parts((), ImageConfig(), stack, ())
    base = _same(catalogue, spec.image, packing)
    workspace = None if spec.workspace is None else _same(catalogue, spec.workspace, packing)
    own = base.layers + (workspace.layers if workspace is not None else ())
    known = {layer.digest for layer in own}
    toolkits = tuple(catalogue.layer(digest).metadata for digest in packing.layers if digest not in known)
    if kind == "workspace":
        below = workspace.layers if workspace is not None else ()
        config = workspace.config if workspace is not None else ImageConfig()
        return Parts(below, config, stack, toolkits)
    return Parts(own, _base_config(base, workspace), stack, toolkits)


def parent_of(packing: Packing) -> str:
    return packing.spec.workspace or packing.spec.image


def _same(catalogue: Catalogue, ref: str, packing: Packing) -> ImageRecord:
    """The image of that name, if it still is the one that the sandbox has."""
    image = catalogue.get(ref)
    if not {layer.digest for layer in image.layers} <= set(packing.layers):
        raise ConflictError(
            f"cannot pack sandbox {packing.asked.sandbox} as {packing.asked.kind}: the {ref} that it was made of was "
            "removed, and another one has its name; pack it as a toolkit",
            ref=ref,
        )
    return image


def _base_config(base: ImageRecord, workspace: ImageRecord | None) -> ImageConfig:
    """The base's, with what the workspace says over it."""
    if workspace is None:
        return base.config
    joined = config_of((base, workspace))
    return msgspec.structs.replace(base.config, env=joined.env, cwd=joined.cwd, user=joined.user)
