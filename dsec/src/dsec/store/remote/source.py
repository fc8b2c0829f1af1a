"""The chunks of one layer, fetched from the shared store: neighbours in one request, decompressed in threads."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from dataclasses import dataclass, field

from dsec.store.loading.base import Deliver, FetchCost
from dsec.store.threads import in_thread
from libdsec.protocol.errors import DSecError, IntegrityError, InvalidArgumentError

from .chunks import decode_chunk
from .objects import Objects
from .table import ZEROS, LayerTable, Place

REQUEST_BYTES = 4 * 1024 * 1024
"""Of one request, at most (more only for one chunk that is larger)."""
GAP_BYTES = 64 * 1024
"""Bytes between two chunks that are rather fetched and thrown away than asked around."""


@dataclass
class _Request:
    """A range of a pack, and the chunks in it."""

    pack: int
    start: int
    end: int
    chunks: list[tuple[int, Place]] = field(default_factory=list)


class RemoteChunks:
    """A `ChunkSource`."""

    def __init__(self, objects: Objects, table: LayerTable, threads: Executor) -> None:
        self._objects = objects
        self._table = table
        self._threads = threads
        self.chunk_size = table.file.chunk_size
        self.chunks = table.chunks

    async def fetch(self, first: int, count: int, deliver: Deliver) -> FetchCost:
        """See `ChunkSource`; raises what that says, and `InvalidArgumentError` for chunks that the layer has not."""
        if first < 0 or count < 0 or first + count > self.chunks:
            raise InvalidArgumentError(
                f"cannot fetch chunks {first}..{first + count - 1}: layer {self._table.file.digest} has {self.chunks}"
            )
        zeros, requests = self._plan(range(first, first + count))
        if zeros:
            await in_thread(self._threads, self._deliver_zeros, zeros, deliver)
        async with asyncio.TaskGroup() as group:
            fetching = [group.create_task(self._fetch(request, deliver)) for request in requests]
        # what is damaged keeps nothing else from being delivered
        errors = [error for task in fetching if (error := task.result()) is not None]
        if errors:
            raise errors[0]
        return FetchCost(len(requests), sum(request.end - request.start for request in requests))

    def _plan(self, chunks: range) -> tuple[list[int], list[_Request]]:
        zeros: list[int] = []
        placed: list[tuple[Place, int]] = []
        for chunk in chunks:
            place = self._table.place(chunk)
            if place.encoding == ZEROS:
                zeros.append(chunk)
            else:
                placed.append((place, chunk))
        requests: list[_Request] = []
        for place, chunk in sorted(placed):
            end = place.offset + place.stored
            last = requests[-1] if requests else None
            if (
                last is None
                or last.pack != place.pack
                or place.offset > last.end + GAP_BYTES
                or max(end, last.end) - last.start > REQUEST_BYTES
            ):
                last = _Request(place.pack, place.offset, end)
                requests.append(last)
            last.end = max(end, last.end)
            last.chunks.append((chunk, place))
        return zeros, requests

    async def _fetch(self, request: _Request, deliver: Deliver) -> DSecError | None:
        pack = self._table.packs[request.pack]
        try:
            content = await self._objects.get_range(pack.path, request.start, request.end - request.start)
        except DSecError as error:
            return error
        return await in_thread(self._threads, self._deliver, request, content, deliver)

    def _deliver(self, request: _Request, content: memoryview, deliver: Deliver) -> IntegrityError | None:
        failure = None
        for chunk, place in request.chunks:
            start = place.offset - request.start
            stored = content[start : start + place.stored]
            try:
                data = decode_chunk(stored, place.encoding, self._table.length(chunk))
            except IntegrityError as error:
                failure = failure or error
            else:
                deliver(chunk, data)
        return failure

    def _deliver_zeros(self, chunks: list[int], deliver: Deliver) -> None:
        for chunk in chunks:
            deliver(chunk, bytes(self._table.length(chunk)))
