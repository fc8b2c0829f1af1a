"""A layer store with what a test puts into it."""

from __future__ import annotations

from collections.abc import Callable

from dsec.edge.images import Composed
from dsec.store.oci.reference import RegistryPlace, parse_place, place_name
from libdsec.protocol.environment import (
    BuildProgress,
    ImageBuildRequest,
    ImageConfig,
    ImageInfo,
    LayerInfo,
    parse_ref,
)
from libdsec.protocol.errors import AlreadyExistsError, ImageNotFoundError
from libdsec.protocol.images import ImageGcAnswer, ImagePublished, ImagePullRequest
from libdsec.protocol.spec import SandboxSpec


class FakeImages:
    """Implements `dsec.edge.images.Images`. Has `tiny:1` from the start."""

    def __init__(self) -> None:
        self._images: dict[str, ImageInfo] = {}
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

    async def pin(self, ref: str, pinned: bool) -> ImageInfo:
        return self.inspect(ref)

    async def collect(self, keep_bytes: int, dry_run: bool) -> ImageGcAnswer:
        return ImageGcAnswer((), 0, 0)

    async def tend(self) -> None:
        """Nothing is written and nothing collected."""

    async def verify(self, ref: str) -> ImageInfo:
        return self.inspect(ref)
