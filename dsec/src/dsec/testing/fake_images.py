"""A layer store with what a test puts into it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from dsec.edge.images import Composed
from dsec.edge.packing import Capture, Uppers
from dsec.store.oci.reference import RegistryPlace, parse_place, place_name
from dsec.store.pack.order import Packing, Upper
from dsec.store.remote.browse import Page
from libdsec.protocol.environment import (
    BuildProgress,
    ImageBuildRequest,
    ImageConfig,
    ImageInfo,
    LayerInfo,
    parse_ref,
)
from libdsec.protocol.errors import AlreadyExistsError, ImageNotFoundError, UnsupportedOperationError
from libdsec.protocol.images import (
    Change,
    ChangeCount,
    HistoryEntry,
    ImageGcAnswer,
    ImageHistory,
    ImagePublished,
    ImagePullRequest,
    ImagePushed,
    ImagePushRequest,
    ImageStats,
    ImageStatsAnswer,
    PackedDiff,
)
from libdsec.protocol.spec import SandboxSpec


class FakeImages:
    """Implements `dsec.edge.images.Images`. Has `tiny:1` from the start."""

    def __init__(self) -> None:
        self._images: dict[str, ImageInfo] = {}
        self._uppers = Uppers()
        self._packed: dict[str, tuple[str, PackedDiff]] = {}
        self.packing = threading.Event()
        """An upper is being read."""
        self.pack_gate = threading.Event()
        """Reading ends when it is set, as it is at first."""
        self.pack_gate.set()
        self.add("tiny:1")

    def add(self, ref: str, config: ImageConfig | None = None) -> None:
        parse_ref(ref)
        layer = LayerInfo(f"sha256:{len(self._images):064x}", 4096, 4096, 1)
        self._images[ref] = ImageInfo(ref, "base", (layer,), config or ImageConfig(), 0.0)

    async def compose(self, spec: SandboxSpec) -> Composed:
        refs = [spec.image, *([spec.workspace] if spec.workspace else []), *spec.toolkits]
        images = [self.inspect(ref) for ref in refs]
        return Composed(tuple(layer.digest for image in images for layer in image.layers), images[0].config)

    async def build(self, request: ImageBuildRequest, progress: Callable[[BuildProgress], None]) -> ImageInfo:
        if request.ref in self._images:
            raise AlreadyExistsError(f"cannot build {request.ref}: it exists", ref=request.ref)
        progress(BuildProgress("fetch"))
        progress(BuildProgress("publish", 1, 1))
        self.add(request.ref, request.config)
        return self._images[request.ref]

    async def pull(self, request: ImagePullRequest, progress: Callable[[BuildProgress], None]) -> ImageInfo:
        place = parse_place(request.source)
        ref = request.ref or (place_name(place) if isinstance(place, RegistryPlace) else "")
        return await self.build(ImageBuildRequest(ref, request.source, request.kind), progress)

    async def push(self, request: ImagePushRequest, progress: Callable[[BuildProgress], None]) -> ImagePushed:
        self.inspect(request.ref)
        progress(BuildProgress("send", 1))
        return ImagePushed(request.destination, f"sha256:{0:064x}", 1)

    async def bring(self, refs: Sequence[str]) -> None:
        """There is no other place."""

    def export(self, ref: str, tick: Callable[[], None]) -> Generator[bytes, None, None]:
        """An empty tar."""
        self.inspect(ref)
        tick()
        yield bytes(1024)

    def diff(self, a: str, b: str, tick: Callable[[], None]) -> Generator[Change, None, None]:
        """Other images are other files."""
        old, new = self.inspect(a), self.inspect(b)
        tick()
        if old.layers != new.layers:
            yield Change("/file", "changed", "file", 1)

    def history(self, ref: str) -> ImageHistory:
        image = self.inspect(ref)
        return ImageHistory(ref, tuple(HistoryEntry(layer, "fake", image.created_at, ref) for layer in image.layers))

    def list(self) -> tuple[ImageInfo, ...]:
        return tuple(self._images[ref] for ref in sorted(self._images))

    def inspect(self, ref: str) -> ImageInfo:
        parse_ref(ref)
        if ref not in self._images:
            raise ImageNotFoundError(f"cannot find image {ref}: it is not published here", ref=ref)
        return self._images[ref]

    async def remove(self, ref: str) -> None:
        self.inspect(ref)
        del self._images[ref]

    async def publish(self, ref: str, progress: Callable[[BuildProgress], None]) -> ImagePublished:
        self.inspect(ref)
        progress(BuildProgress("publish", 1))
        return ImagePublished(ref, "memory:///", 1, 1, 1)

    async def fetch(self, ref: str, progress: Callable[[BuildProgress], None]) -> ImageInfo:
        progress(BuildProgress("fetch", 1))
        return self.inspect(ref)

    async def stats(self, ref: str) -> ImageStatsAnswer:
        """Of layers that are all here."""
        layers = {layer.digest: layer for image in self._images.values() for layer in image.layers}
        wanted = {layer.digest for layer in self.inspect(ref).layers} if ref else layers.keys()
        counted = tuple(
            ImageStats(digest, (ref,), "local", size := layers[digest].data_bytes, size, 0, 0, 0, 0, 0, 0, 0, False, 0)
            for digest in sorted(wanted)
        )
        return ImageStatsAnswer(counted, 0, 0)

    async def list_shared(self, after: str | None) -> Page:
        return Page((), None)

    async def pin(self, ref: str, pinned: bool) -> ImageInfo:
        return self.inspect(ref)

    async def collect(self, keep_bytes: int, dry_run: bool) -> ImageGcAnswer:
        return ImageGcAnswer((), 0, 0)

    async def tend(self) -> None:
        """Nothing is written and nothing collected."""

    async def pack(self, packing: Packing, capture: Capture, progress: Callable[[BuildProgress], None]) -> PackedDiff:
        ref = packing.asked.ref
        if packing.asked.publish:
            raise UnsupportedOperationError(f"cannot publish {ref}: the fake has no shared store")
        made = self._packed.get(ref)
        if made is not None and made[0] == packing.maker:
            return made[1]
        if ref in self._images:
            raise AlreadyExistsError(f"cannot pack {ref}: it exists", ref=ref)
        layer = await self._uppers.read(capture, self._packed_layer, progress)
        below = self.inspect(packing.spec.image).layers if packing.asked.kind == "base" else ()
        image = ImageInfo(ref, packing.asked.kind, (*below, layer), ImageConfig(), 0.0, packing.spec.image)
        self._images[ref] = image
        answer = PackedDiff(image, layer, (), 0, 0)
        self._packed[ref] = packing.maker, answer
        return answer

    def _packed_layer(self, upper: Upper, progress: Callable[[BuildProgress], None]) -> LayerInfo:
        """In a thread, and as slow as a test wants it."""
        progress(BuildProgress("write"))
        self.packing.set()
        while not self.pack_gate.wait(0.01):
            upper.check()
        files = sum(path.is_file() for path in Path(upper.path).rglob("*"))
        upper.done()
        return LayerInfo(f"sha256:{len(self._images):064x}", 4096, 4096, files)

    @asynccontextmanager
    async def changes(
        self, layers: Sequence[str], id_base: int, capture: Capture
    ) -> AsyncIterator[tuple[ChangeCount, Iterator[bytes]]]:
        def find(upper: Upper, _: object) -> list[Change]:
            top = Path(upper.path)
            found = sorted(path for path in top.rglob("*") if path.is_file())
            return [Change(f"/{path.relative_to(top)}", "added", "file", path.stat().st_size) for path in found]

        found = await self._uppers.read(capture, find, lambda news: None)
        yield ChangeCount(len(found), 0, 0), iter([msgspec.msgpack.encode(found)] if found else [])

    async def verify(self, ref: str) -> ImageInfo:
        return self.inspect(ref)
