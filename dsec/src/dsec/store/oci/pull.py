"""Pulling an image: from a place outside to a published image of this node."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from dsec.store import merge
from dsec.store.build import LayerBuild
from dsec.store.catalogue import already_exists
from dsec.store.local import LocalStore, Taken
from dsec.store.records import ImageRecord, LayerRecord
from libdsec.protocol.environment import BuildProgress, ImageInfo, parse_ref
from libdsec.protocol.errors import InvalidArgumentError, from_body
from libdsec.protocol.images import ImagePullRequest

from . import known
from .flights import Flights, Key, Made
from .manifest import broken
from .messages import Built, Convert, Failed, Found, Inherit, Resolve, Start, Told
from .reference import parse_place
from .source import LayerBlob, Resolved
from .workers import Crew, Worker

Progress = Callable[[BuildProgress], None]
"""Called at least each second; what it raises ends the pull and comes out of it."""

MAX_JOBS: Final = 3
_TURN_S: Final = 0.25

EMPTY: Final = frozenset(
    (
        "sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef",
        "sha256:84ff92691f909a05b224e1c56abb4864f01b4f8e3c854e4bb4c7baf1d3f6d652",
    )
)
"""Tars with nothing in them, of 1,024 and of 10,240 zeros: most images have some."""


@dataclass
class _Part:
    """Some consecutive OCI layers, and the layer that is here for them, or comes."""

    diff_ids: tuple[str, ...]
    below: bytes
    blob: LayerBlob
    """The first of them."""
    record: LayerRecord | None = None
    build: LayerBuild | None = None
    """Made, but not taken before those below are there."""
    state: str = "wanted"
    """`wanted`, `making`, `built`, `inheriting`, `done`."""
    bound: bool = False
    """It is what it is because of what lies below."""
    fresh: bool = False
    """Made by this pull, or by another one at the same time."""

    @property
    def key(self) -> Key:
        return self.below, self.diff_ids[0]


class Puller:
    """Pulls of one node; calls are safe from several threads."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._flights = Flights()
        self._slots = threading.BoundedSemaphore(max(1, min(MAX_JOBS, os.cpu_count() or 1)))

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
            parse_ref(request.ref)
            self._check_free(request.ref)
        if request.merge_bytes < 0:
            raise InvalidArgumentError(
                f"cannot merge layers up to {request.merge_bytes} bytes: it must not be negative", field="merge_bytes"
            )
        start = Start(request.source, request.login, request.plain_http)
        with ExitStack() as stack:
            taken = stack.enter_context(self._store.taking())
            stack.callback(self._flights.leave, taken)
            directory = stack.enter_context(self._store.build_directory())
            crew = stack.enter_context(Crew(start, self._slots))
            progress(BuildProgress("fetch"))
            resolved = _resolve(crew, progress)
            ref = request.ref or _local_name(request.source, resolved)
            self._check_free(ref)
            parts = _Fetching(self._store, taken, self._flights, crew, directory, request, resolved, progress).run()
            made = _merged(self._store, taken, parts, request, progress)
            progress(BuildProgress("publish"))
            records = tuple(record for record, _ in made)
            if not records:
                raise broken(request.source, "it has no files")
            image = ImageRecord(ref, request.kind, records, resolved.config, time.time())
            info = self._store.publish_image(image).info()
            known.remember(self._store.catalogue, [each for _, each in made if each is not None])
        return info

    def _check_free(self, ref: str) -> None:
        if self._store.catalogue.exists(ref):
            raise already_exists(ref)


def _resolve(crew: Crew, progress: Progress) -> Resolved:
    worker: Worker | None = None
    while True:
        worker = worker or crew.try_give(Resolve())
        for answering, answer in crew.wait(_TURN_S):
            crew.done(answering)
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


class _Fetching:
    """From an image that is known to layers that are here."""

    def __init__(
        self,
        store: LocalStore,
        taken: Taken,
        flights: Flights,
        crew: Crew,
        directory: str,
        request: ImagePullRequest,
        resolved: Resolved,
        progress: Progress,
    ) -> None:
        self._store = store
        self._taken = taken
        self._flights = flights
        self._crew = crew
        self._directory = directory
        self._request = request
        self._progress = progress
        self._layers = [layer for layer in resolved.layers if layer.diff_id not in EMPTY]
        self._parts: list[_Part] = []
        self._doing: dict[Worker, _Part] = {}
        self._read = 0

    def run(self) -> list[_Part]:
        self._plan()
        while any(part.state != "done" for part in self._parts):
            self._begin()
            for worker, answer in self._crew.wait(_TURN_S):
                if isinstance(answer, Told):
                    self._read += answer.bytes
                    continue
                self._crew.done(worker)
                part = self._doing.pop(worker)
                if isinstance(answer, Failed):
                    raise from_body(answer.error)
                assert isinstance(answer, Built)
                self._built(part, answer.build)
            self._progress(BuildProgress("fetch", self._read))
        return self._parts

    def _plan(self) -> None:
        """Which layers are here, the longest runs first, and which are wanted."""
        diff_ids = [layer.diff_id for layer in self._layers]
        first = 0
        while first < len(diff_ids):
            beneath = known.below(self._request.kind, diff_ids[:first])
            record, behind = self._here(diff_ids, first, beneath)
            part = _Part(tuple(diff_ids[first:behind]), beneath, self._layers[first], record)
            if record is not None:
                part.state = "done"
            self._parts.append(part)
            first = behind

    def _here(self, diff_ids: Sequence[str], first: int, beneath: bytes) -> tuple[LayerRecord | None, int]:
        merged_too = self._request.merge_bytes > 0
        for behind in range(len(diff_ids) if merged_too else first + 1, first, -1):
            digest = known.find(self._store.catalogue, diff_ids[first:behind], beneath)
            record = None if digest is None else self._taken.find(digest)
            if record is not None and (behind == first + 1 or record.data_bytes <= self._request.merge_bytes):
                return record, behind
        return None, first + 1

    def _begin(self) -> None:
        """Give away what can be done now: layers from below, since those above wait for them."""
        for number, part in enumerate(self._parts):
            if part.state == "built" and all(lower.state == "done" for lower in self._parts[:number]):
                assert part.build is not None
                below = tuple(lower.record.metadata for lower in self._parts[:number] if lower.record is not None)
                self._give(part, Inherit(part.build, below), "inheriting")
            elif part.state == "wanted":
                answer = self._flights.claim(part.key, self._taken)
                if isinstance(answer, Made):
                    part.fresh = True
                    self._done(part, answer)
                elif answer == "mine":
                    part.state = "mine"
            if part.state == "mine":
                self._give(part, Convert(part.blob, self._directory, f"layer{number}"), "making")

    def _give(self, part: _Part, job: Convert | Inherit, state: str) -> None:
        worker = self._crew.try_give(job)
        if worker is not None:
            self._doing[worker] = part
            part.state = state

    def _built(self, part: _Part, build: LayerBuild) -> None:
        lowest = part is self._parts[0]
        if part.state == "making" and build.implied and not lowest:
            part.build, part.state = build, "built"
            return
        part.fresh = True
        bound = part.build is not None and part.build.layer_digest != build.layer_digest
        # of a layer that has nothing but a root nothing would be seen: a sandbox's root is its own
        record = self._taken.take(build) if build.inodes > 1 else None
        made = Made(record, bound)
        self._flights.landed(part.key, made)
        self._done(part, made)

    def _done(self, part: _Part, made: Made) -> None:
        part.record, part.bound, part.state = made.record, made.bound, "done"


def _merged(
    store: LocalStore, taken: Taken, parts: Sequence[_Part], request: ImagePullRequest, progress: Progress
) -> list[tuple[LayerRecord, known.Known | None]]:
    """The image's layers, those that came just now merged within the bound, and what is worth remembering of each.

    Layers that were here already belong to other images, and stay as they are to be shared.
    """
    made: list[tuple[LayerRecord, known.Known | None]] = []
    for run in _runs(parts, request.merge_bytes):
        records = [part.record for part in run if part.record is not None]
        if not records:
            continue
        diff_ids = tuple(diff_id for part in run for diff_id in part.diff_ids)
        if len(records) == 1:
            record = records[0]
            bound = run[0].bound
        else:
            bottom = request.kind == "base" and run[0] is parts[0]
            (record,) = merge.merge_layers(store, records, request.merge_bytes, progress, taken, complete=bottom)
            bound = bottom or any(part.bound for part in run)
        fresh = run[0].fresh
        made.append((record, known.Known(diff_ids, run[0].below if bound else b"", record.digest) if fresh else None))
    return made


def _runs(parts: Sequence[_Part], most: int) -> list[list[_Part]]:
    runs: list[list[_Part]] = []
    size = 0
    for part in parts:
        more = 0 if part.record is None else part.record.data_bytes
        if runs and part.fresh and runs[-1][-1].fresh and size + more <= most:
            runs[-1].append(part)
        else:
            runs.append([part])
            size = 0
        size += more
    return runs
