"""Garbage collection: which images this node may forget, the longest unused first.

An image may go when the shared store has it, nobody pinned it, and no sandbox has one of its layers. What is collected
are layers: images go only where a layer goes with them. `plan` is pure; `Collector` carries it out, image by image, and
looks again before each whether it still may go, and whether the store still has it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from libdsec.protocol.errors import ConflictError, ImageNotFoundError
from libdsec.protocol.images import Collected, ImageGcAnswer

from .catalogue import layer_directory
from .local import LocalStore
from .mounts import LayerMounts
from .records import ImageRecord
from .remote.shared import SharedStore
from .uses import Uses, layer_bytes


@dataclass(frozen=True)
class Plan:
    collected: tuple[Collected, ...]
    images: tuple[str, ...]
    """That go, in this order."""
    kept_bytes: int


def plan(
    images: Sequence[ImageRecord],
    sizes: Mapping[str, int],
    last_used: Mapping[str, float],
    may_go: Callable[[ImageRecord], bool],
    keep_bytes: int,
    now: float,
) -> Plan:
    """`sizes` are those of all layers on the disk, `last_used` has a time for each of them."""
    layers = {image.ref: frozenset(layer.digest for layer in image.layers) for image in images}
    having: dict[str, list[str]] = {}
    for ref, digests in layers.items():
        for digest in digests:
            having.setdefault(digest, []).append(ref)
    left = {digest: len(refs) for digest, refs in having.items()}
    total = sum(sizes.values())
    going: list[str] = []
    gone: dict[str, tuple[str, ...]] = {}
    # an image is used only where all its layers are: it was not used after the one of them unused longest
    candidates = sorted(
        (min(last_used.get(layer.digest, 0.0) for layer in image.layers), image.ref)
        for image in images
        if may_go(image)
    )
    for _, ref in candidates:
        if total <= keep_bytes:
            break
        going.append(ref)
        for digest in sorted(layers[ref]):
            left[digest] -= 1
            if not left[digest]:
                gone[digest] = tuple(having[digest])
                total -= sizes.get(digest, 0)
    needed = {ref for refs in gone.values() for ref in refs}
    collected = tuple(
        Collected(digest, refs, sizes.get(digest, 0), _why(last_used.get(digest), now)) for digest, refs in gone.items()
    )
    return Plan(collected, tuple(ref for ref in going if ref in needed), total)


def _why(used_at: float | None, now: float) -> str:
    if not used_at:
        return "the shared store has it, and no sandbox used it"
    hours = max(0.0, now - used_at) / 3600
    since = f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.0f} min"
    return f"the shared store has it, and no sandbox used it for {since}"


class Collector:
    """On one event loop."""

    def __init__(
        self,
        store: LocalStore,
        mounts: LayerMounts,
        uses: Uses,
        shared: SharedStore | None,
        now: Callable[[], float],
        gone: Callable[[], None],
    ) -> None:
        """`gone` is called when an image is, before anybody else chooses layers."""
        self._store = store
        self._mounts = mounts
        self._uses = uses
        self._shared = shared
        self._now = now
        self._gone = gone
        self._turn = asyncio.Lock()
        self._going: frozenset[str] = frozenset()

    async def chosen(self, layers: Sequence[str]) -> bool:
        """These are about to be used. False: some of them may be gone by now, choose again."""
        if not self._going.isdisjoint(layers):
            async with self._turn:
                return False
        self._uses.note(layers)
        return True

    async def run(self, keep_bytes: int, *, dry_run: bool = False) -> ImageGcAnswer:
        """Forget images until the layers have `keep_bytes` at most, or no more may go."""
        async with self._turn:
            planned = await asyncio.to_thread(self._plan, keep_bytes)
            removed = {ref for ref in planned.images if await self._remove(ref, dry_run=dry_run)}
        # a layer is gone where all went that had it
        collected = tuple(each for each in planned.collected if removed.issuperset(each.refs))
        total = sum(each.bytes for each in planned.collected)
        freed = sum(each.bytes for each in collected)
        return ImageGcAnswer(collected, freed, planned.kept_bytes + total - freed)

    def note_running(self) -> None:
        """What sandboxes have is used until they end."""
        self._uses.note(self._mounts.used())

    def total(self) -> int:
        """Bytes of all layers on the disk. Blocks."""
        return sum(self._sizes().values())

    def _sizes(self) -> dict[str, int]:
        return {
            f"sha256:{name}": layer_bytes(os.path.join(self._store.layers_dir, name))
            for name in os.listdir(self._store.layers_dir)
        }

    def _plan(self, keep_bytes: int) -> Plan:
        images = self._store.catalogue.list()
        pinned = self._uses.pinned()
        shared: frozenset[str] = frozenset() if self._shared is None else self._shared.images()

        def may_go(image: ImageRecord) -> bool:
            return image.ref in shared and image.ref not in pinned and not self._used(image)

        sizes = self._sizes()
        last_used = {**{digest: self._came_at(digest) for digest in sizes}, **self._uses.last()}
        return plan(images, sizes, last_used, may_go, keep_bytes, self._now())

    def _came_at(self, digest: str) -> float:
        """A layer that was never used counts as used when it came here."""
        try:
            return os.stat(layer_directory(self._store.layers_dir, digest)).st_mtime
        except FileNotFoundError:
            return 0.0

    def _used(self, image: ImageRecord) -> bool:
        return any(self._in_use(layer.digest) for layer in image.layers)

    def _in_use(self, digest: str) -> bool:
        return self._mounts.in_use(digest) or self._uses.just_used(digest)

    async def _remove(self, ref: str, *, dry_run: bool) -> bool:
        """False: somebody needs it after all, or the store has lost it."""
        try:
            image = self._store.catalogue.get(ref)
        except ImageNotFoundError:
            return True
        if self._shared is None or not await self._shared.has(image):
            return False
        if dry_run:
            return True
        # who comes for these layers from now on waits, who came before is seen
        self._going = frozenset(layer.digest for layer in image.layers)
        try:
            if self._used(image) or ref in self._uses.pinned():
                return False
            orphans = await asyncio.to_thread(self._store.remove, ref, self._mounts.in_use)
        except ConflictError:
            return False
        finally:
            self._going = frozenset()
            self._gone()
        for digest in orphans:
            # an idle mount would keep the removed files' space on the disk
            await self._mounts.forget(digest)
        return True
