"""Pulling an image: from a place outside to a published image of this node."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

from dsec.store import disk_full, origins
from dsec.store.catalogue import Catalogue, already_exists
from dsec.store.digest import STORE_CHUNK_SIZE
from dsec.store.erofs.format import round_up
from dsec.store.flatten import has_opaque_root
from dsec.store.local import LocalStore, Taken
from dsec.store.merge import merge_layers
from dsec.store.records import ImageRecord, LayerRecord
from libdsec.protocol.environment import BuildProgress, ImageInfo, require_not_cached
from libdsec.protocol.errors import InvalidArgumentError, from_body
from libdsec.protocol.images import ImagePullRequest

from . import known
from .fetching import TURN_S, Fetching, Part, Progress
from .flights import Flights
from .manifest import broken
from .messages import Failed, Found, Resolve, Start
from .reference import RegistryPlace, parse_place
from .source import Resolved
from .workers import Crew

MAX_JOBS: Final = 3
"""Layers that a node fetches and converts at once."""
ANY_SIZE: Final = 1 << 62


class Puller:
    """Pulls of one node; calls are safe from several threads."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._flights = Flights()
        self._slots = threading.BoundedSemaphore(MAX_JOBS)

    def pull(self, request: ImagePullRequest, progress: Progress) -> ImageInfo:
        """Blocks until the image is published; an error or an exception of `progress` leaves nothing of it.

        :raises InvalidArgumentError: the request is wrong, or no image can be made of what is there.
        :raises AlreadyExistsError: the name is taken.
        :raises NotFoundError, UnauthenticatedError, PermissionDeniedError, UnavailableError: the registry says so.
        :raises UnsupportedOperationError: an image for other nodes, or of a form that is not known.
        :raises IntegrityError: some bytes are not what their digest says.
        :raises CapacityError: the disk is full, or nearly.
        """
        parse_place(request.source)
        if request.ref:
            require_not_cached(request.ref)
            self._check_free(request.ref)
        if request.merge_bytes < 0:
            raise InvalidArgumentError(
                f"cannot merge layers up to {request.merge_bytes} bytes: it must not be negative", field="merge_bytes"
            )
        start = Start(request.source, request.login, request.plain_http)
        with ExitStack() as stack:
            stack.enter_context(disk_full.typed(f"pull {request.source}", self._store.state_dir))
            taken = stack.enter_context(self._store.taking())
            stack.callback(self._flights.leave, taken)
            directory = stack.enter_context(self._store.build_directory())
            crew = stack.enter_context(Crew(start, self._slots))
            progress(BuildProgress("fetch"))
            resolved = _resolve(crew, progress)
            ref = request.ref or _local_name(request.source, resolved)
            self._check_free(ref)
            parts = Fetching(self._store, taken, self._flights, crew, directory, request, resolved, progress).run()
            made = _merged(self._store, taken, _shown(parts), request, progress)
            progress(BuildProgress("publish"))
            if not made:
                raise broken(request.source, "it has no files")
            records = tuple(layer.record for layer in made)
            image = ImageRecord(ref, request.kind, records, resolved.config, time.time())
            self._store.publish_image(image, [layer.made_by(request.source) for layer in made])
            self._remember(ref, made, request.source)
        return image.info()

    def _remember(self, ref: str, made: Sequence[_Layer], source: str) -> None:
        catalogue, place = self._store.catalogue, parse_place(source)
        known.remember(catalogue, [layer.known() for layer in made if layer.fresh])
        if isinstance(place, RegistryPlace):
            read = [(layer.record.digest, blob) for layer in made for blob in layer.read]
            found = [layer.origin(place.name, catalogue) for layer in made]
            origins.remember(catalogue, ref, place.host, read, [origin for origin in found if origin is not None])

    def _check_free(self, ref: str) -> None:
        if self._store.catalogue.exists(ref):
            raise already_exists(ref)


def _resolve(crew: Crew, progress: Progress) -> Resolved:
    crew.ask(Resolve())
    while True:
        for worker, answer in crew.wait(TURN_S):
            crew.answered(worker)
            if isinstance(answer, Found):
                return answer.resolved
            assert isinstance(answer, Failed)
            raise from_body(answer.error)
        progress(BuildProgress("fetch"))


def _local_name(source: str, resolved: Resolved) -> str:
    if not resolved.name:
        raise InvalidArgumentError(
            f"cannot name what {source[:300]} has: it says no name and tag that could be used; give one", field="ref"
        )
    return resolved.name


class _Layer(NamedTuple):
    """One of the finished image's layers, and the parts that went into it."""

    record: LayerRecord
    parts: Sequence[Part]
    bound: bool
    """What it is depends on what lies below."""

    @property
    def fresh(self) -> bool:
        return self.parts[0].fresh

    def known(self) -> known.Known:
        diff_ids = tuple(diff_id for part in self.parts for diff_id in part.diff_ids)
        return known.Known(diff_ids, self.below, self.record.digest)

    @property
    def below(self) -> bytes:
        return self.parts[0].below if self.bound else b""

    @property
    def read(self) -> list[origins.PulledBlob]:
        """Those of its blobs that this pull has read."""
        return [blob for part in self.parts if part.read for blob in _blobs(part)]

    def origin(self, name: str, catalogue: Catalogue) -> origins.Origin | None:
        """Where it lies in this repository, unless this node has never read what is said to be it."""
        blobs = [blob for part in self.parts for blob in _blobs(part)]
        unread = [blob for part in self.parts if not part.read for blob in _blobs(part)]
        if not origins.were_read(catalogue, unread):
            return None
        return origins.Origin(self.record.digest, self.below, name, tuple(blobs))

    def made_by(self, source: str) -> str:
        steps = [how for part in self.parts for how in part.made_by if how]
        return f"{source}: {'; '.join(steps)}" if steps else source


def _blobs(part: Part) -> list[origins.PulledBlob]:
    return [origins.PulledBlob(blob.digest, blob.size, blob.diff_id, blob.media_type) for blob in part.blobs]


def _shown(parts: Sequence[Part]) -> Sequence[Part]:
    """Without what an opaque root hides: overlayfs takes no notice of one."""
    for number in range(len(parts) - 1, 0, -1):
        record = parts[number].record
        if record is not None and has_opaque_root(record):
            return parts[number:]
    return parts


def _merged(
    store: LocalStore, taken: Taken, parts: Sequence[Part], request: ImagePullRequest, progress: Progress
) -> list[_Layer]:
    """The image's layers, those that came just now merged within the bound.

    Layers that were here already belong to other images, and stay as they are to be shared.
    """
    made: list[_Layer] = []
    for run in _runs(parts, request.merge_bytes):
        records = [part.record for part in run if part.record is not None]
        bound = any(part.bound for part in run)
        if len(records) > 1:
            bottom = request.kind == "base" and run[0] is parts[0]
            records = [*merge_layers(store, records, ANY_SIZE, progress, taken, complete=bottom)]
            bound = bound or bottom
        if records:
            (record,) = records
            made.append(_Layer(record, run, bound))
    return made


def _runs(parts: Sequence[Part], most: int) -> list[list[Part]]:
    """Parts that become one layer."""
    runs: list[list[Part]] = []
    size = 0
    for part in parts:
        more = 0 if part.record is None else round_up(part.record.data_bytes, STORE_CHUNK_SIZE)
        if runs and part.fresh and runs[-1][-1].fresh and size + more <= most:
            runs[-1].append(part)
        else:
            runs.append([part])
            size = 0
        size += more
    return runs
