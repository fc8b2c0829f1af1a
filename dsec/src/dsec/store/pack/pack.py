"""An upper as a layer, and the image that it becomes part of.

Blocking; the caller runs it in a thread. Either the image is published and durable, with the record of which step
packed it, or nothing of it is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

from dsec import faults
from dsec.store import disk_full
from dsec.store.build import LayerBuild, build_layer
from dsec.store.compose import MAX_LAYERS
from dsec.store.history import MAX_MADE_BY
from dsec.store.local import LocalStore
from dsec.store.origins import handed_on
from dsec.store.records import ImageRecord
from dsec.store.sources import SourceItem
from dsec.store.tree import printable
from libdsec.protocol.environment import BuildProgress, parse_ref
from libdsec.protocol.errors import InvalidArgumentError
from libdsec.protocol.images import PackedDiff

from .lower import Lower
from .matching import check_rules, matcher_of
from .order import Packing, Upper
from .parts import Parts, parent_of, parts_of
from .record import earlier, recorded
from .rules import RULES
from .upper import UpperSource

MAX_IN_TOOLKITS = 1000

Progress = Callable[[BuildProgress], None]


def check(store: LocalStore, packing: Packing) -> PackedDiff | Parts:
    """Everything that can be told before the sandbox has to stand still. The answer, where this very step has packed
    the image already; else what is to be packed.

    :raises InvalidArgumentError: a name, a rule or a comment that cannot be used, or too many layers.
    :raises AlreadyExistsError: somebody else's image has the name.
    :raises ImageNotFoundError, ConflictError: as `parts_of`.
    """
    parse_ref(packing.asked.ref)
    check_rules(packing.asked.rules)
    if len(packing.asked.comment) > MAX_MADE_BY:
        raise InvalidArgumentError(
            f"cannot pack {packing.asked.ref}: its comment has more than {MAX_MADE_BY} characters", field="comment"
        )
    found = earlier(store.catalogue, packing.asked.ref, packing.maker)
    if found is not None:
        return found
    parts = parts_of(store.catalogue, packing)
    if packing.asked.kind != "toolkit" and len(packing.layers) >= MAX_LAYERS:
        raise InvalidArgumentError(
            f"cannot pack {packing.asked.ref}: a sandbox of it would have more than {MAX_LAYERS} layers; make one of "
            "them with `dsec image export` and `dsec image build --from tar:FILE`",
            limit=MAX_LAYERS,
        )
    return parts


def pack(store: LocalStore, packing: Packing, parts: Parts, upper: Upper, progress: Progress) -> PackedDiff:
    """Build the layer and publish the image.

    :raises ConflictError: a layer of `parts` was removed meanwhile.
    :raises DSecError: the name was taken meanwhile; what is in the upper cannot become a layer (says which path); the
        disk is full; what `upper.check` raises.
    """
    with disk_full.typed(f"pack {packing.asked.ref}", store.state_dir), store.build_directory() as directory:
        with Lower(parts.stack) as lower, Lower(parts.toolkits) as toolkits:
            reading = _Reading(packing, upper, lower, toolkits)
            progress(BuildProgress("write"))
            build = reading.build(directory, progress)
        faults.point("pack.built")
        progress(BuildProgress("publish", build.content_bytes, build.files))
        answer = _publish(store, packing, parts, build, directory, reading)
    faults.point("pack.published")
    return answer


class _Reading:
    """The upper, read into a layer, and what there is to tell of that."""

    def __init__(self, packing: Packing, upper: Upper, lower: Lower, toolkits: Lower) -> None:
        self._upper = upper
        self._toolkits = toolkits
        self.in_toolkits: list[bytes] = []
        self.frozen_ms = upper.stood_ms
        asked = packing.asked
        self.source = UpperSource(
            upper.path,
            packing.id_base,
            lower=lower,
            matcher=matcher_of((*(RULES if asked.scrub else ()), *asked.rules)),
            check=upper.check,
            on_name=self._on_name,
        )

    def build(self, directory: str, progress: Progress) -> LayerBuild:
        def tell(done: int) -> None:
            self._upper.check()
            progress(BuildProgress("write", done))

        return build_layer(self, directory, "layer", progress=tell, remap=self.source.remap, sync_names=False)

    def entries(self) -> Generator[SourceItem, None, None]:
        """See `Source.entries`."""
        yield from self.source.entries()
        if self._upper.since is not None:
            self.frozen_ms = round((time.monotonic() - self._upper.since) * 1000, 3)
        self._upper.done()

    def _on_name(self, path: bytes) -> None:
        if len(self.in_toolkits) < MAX_IN_TOOLKITS and self._toolkits.find(path) is not None:
            self.in_toolkits.append(path)


def _publish(
    store: LocalStore, packing: Packing, parts: Parts, build: LayerBuild, directory: str, reading: _Reading
) -> PackedDiff:
    asked, residue = packing.asked, reading.source.residue
    with store.taking() as taken:
        layers = parts.kept(taken)
        if not (reading.source.empty and layers):
            layers = (*layers, taken.take(build, directory))
        image = ImageRecord(asked.ref, asked.kind, layers, parts.config, time.time(), parent_of(packing))
        answer = PackedDiff(
            image.info(),
            layers[-1].info(),
            residue.rows(),
            residue.files,
            residue.bytes,
            tuple(printable(path) for path in reading.in_toolkits),
            reading.frozen_ms,
        )
        how = asked.comment or f"packed from sandbox {asked.sandbox} ({parent_of(packing)})"
        sources = [ref for ref in (packing.spec.image, packing.spec.workspace) if ref is not None]
        beside = (recorded(answer, packing.maker), handed_on(image.ref, sources))
        store.publish_image(image, [*[""] * (len(layers) - 1), how], beside)
    return answer
