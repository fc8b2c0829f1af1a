"""From an image that is known to layers that are here: those that were here before, and those that are made now.

All in one thread: it gives jobs to the pull's child processes, hears what they say, and looks after layers that other
pulls make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from dsec.store.build import LayerBuild
from dsec.store.flatten import has_opaque_root
from dsec.store.local import LocalStore, Taken
from dsec.store.records import LayerRecord
from libdsec.protocol.environment import BuildProgress
from libdsec.protocol.errors import from_body
from libdsec.protocol.images import ImagePullRequest

from . import known
from .flights import Flights, Key, Made
from .messages import Built, Convert, Failed, Inherit, Told
from .source import LayerBlob, Resolved
from .workers import Crew, Worker

Progress = Callable[[BuildProgress], None]
"""Called at least each second; what it raises ends the pull and comes out of it."""

TURN_S: Final = 0.25
WORTH_BYTES: Final = 8 * 1024 * 1024
"""Compressed, of layers that nobody makes yet. To make fewer takes less time than to begin another process."""

State = Literal["wanted", "mine", "making", "built", "inheriting", "done"]
"""Nobody's, or another pull's; to be made by this one; given to a child; made, but waiting for those below; given to a
child again; there."""

EMPTY: Final = frozenset(
    (
        "sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef",
        "sha256:84ff92691f909a05b224e1c56abb4864f01b4f8e3c854e4bb4c7baf1d3f6d652",
    )
)
"""Tars with nothing in them, of 1,024 and of 10,240 zeros: most images have some."""


@dataclass
class Part:
    """Some consecutive OCI layers, and the layer that is here for them, or comes."""

    diff_ids: tuple[str, ...]
    below: bytes
    blobs: tuple[LayerBlob, ...]
    """They themselves, where they lie; one, if it is to be made."""
    made_by: tuple[str, ...]
    """In words, beside the layers."""
    record: LayerRecord | None = None
    build: LayerBuild | None = None
    """Made, but not taken before those below are there."""
    state: State = "wanted"
    bound: bool = False
    """What it is depends on what lies below."""
    fresh: bool = False
    """Made by this pull, or by another one at the same time."""
    read: bool = False
    """This pull has read its blob, and it was what its digests say."""

    @property
    def blob(self) -> LayerBlob:
        """The first."""
        return self.blobs[0]

    @property
    def key(self) -> Key:
        return self.below, self.diff_ids[0]


class Fetching:
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
        told = zip(resolved.layers, resolved.made_by, strict=True)
        self._layers = [(layer, how) for layer, how in told if layer.diff_id not in EMPTY]
        self._parts: list[Part] = []
        self._doing: dict[Worker, Part] = {}
        self._read = 0
        self._total = 0

    def run(self) -> list[Part]:
        self._plan()
        while any(part.state != "done" for part in self._parts):
            self._begin()
            for worker, answer in self._crew.wait(TURN_S):
                if isinstance(answer, Told):
                    self._read += answer.bytes
                    continue
                self._crew.done(worker)
                part = self._doing.pop(worker)
                if isinstance(answer, Failed):
                    raise from_body(answer.error)
                assert isinstance(answer, Built)
                self._built(part, answer.build)
            self._progress(BuildProgress("fetch", self._read, bytes_total=self._total))
        return self._parts

    def _plan(self) -> None:
        """Which layers are here, the longest runs first, and which are wanted."""
        diff_ids = [layer.diff_id for layer, _ in self._layers]
        first = 0
        while first < len(diff_ids):
            beneath = known.below(self._request.kind, diff_ids[:first])
            record, behind = self._here(diff_ids, first, beneath)
            blobs, made_by = zip(*self._layers[first:behind], strict=True)
            part = Part(tuple(diff_ids[first:behind]), beneath, blobs, made_by, record)
            if record is not None:
                part.state = "done"
            else:
                self._total += part.blob.size
            self._parts.append(part)
            first = behind

    def _here(self, diff_ids: Sequence[str], first: int, beneath: bytes) -> tuple[LayerRecord | None, int]:
        merged_too = self._request.merge_bytes > 0
        for behind in range(len(diff_ids) if merged_too else first + 1, first, -1):
            found = known.find(self._store.catalogue, diff_ids[first:behind], beneath)
            record = None if found is None else self._taken.find(found.digest)
            if record is not None and (behind == first + 1 or record.data_bytes <= self._request.merge_bytes):
                return record, behind
        return None, first + 1

    def _begin(self) -> None:
        """Give away what can be done now: layers from below, since those above wait for them."""
        for number, part in enumerate(self._parts):
            if part.state == "built" and all(lower.state == "done" for lower in self._parts[:number]):
                assert part.build is not None
                below = tuple(lower.record.metadata for lower in self._parts[:number] if lower.record is not None)
                self._give(part, Inherit(part.build, below, self._request.kind == "base"), "inheriting")
            elif part.state == "wanted":
                answer = self._flights.claim(part.key, self._taken)
                if isinstance(answer, Made):
                    part.fresh = True
                    self._done(part, answer)
                elif answer == "mine":
                    part.state = "mine"
                    self._look_again(part)
            if part.state == "mine":
                self._give(part, Convert(part.blob, self._directory, f"layer{number}"), "making")

    def _look_again(self, part: Part) -> None:
        """Another pull may have made it, published it and ended since this one looked."""
        found = known.find(self._store.catalogue, part.diff_ids, part.below)
        record = None if found is None else self._taken.find(found.digest)
        if found is not None and record is not None:
            made = Made(record, bool(found.below))
            self._flights.landed(part.key, made)
            self._done(part, made)

    def _give(self, part: Part, job: Convert | Inherit, state: State) -> None:
        left = sum(each.blob.size for each in self._parts if each.state == "mine")
        worker = self._crew.try_give(job, worth_another=left >= WORTH_BYTES)
        if worker is not None:
            self._doing[worker] = part
            part.state = state

    def _built(self, part: Part, build: LayerBuild) -> None:
        part.read = True
        if part.state == "making" and build.implied:
            part.build, part.state = build, "built"
            return
        part.fresh = True
        # also where nothing had to be changed: over other layers something might
        bound = part.build is not None
        record = self._taken.take(build)
        # of nothing but a root nothing would be seen, a sandbox's root is its own: unless it hides what lies below
        seen = build.inodes > 1 or has_opaque_root(record)
        made = Made(record if seen else None, bound)
        self._flights.landed(part.key, made)
        self._done(part, made)

    def _done(self, part: Part, made: Made) -> None:
        part.record, part.bound, part.state = made.record, made.bound, "done"
