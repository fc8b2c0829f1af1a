"""What the loader needs of a shared store, and what the node needs of the loader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from dsec.store.records import LayerRecord

Deliver = Callable[[int, bytes], None]
"""(number of a chunk, its bytes as they stand in the data file): takes it. Checks, writes and answers readers, which
may take milliseconds; safe from any thread, so best called in the one that decompresses, and never raises."""


class FetchCost(NamedTuple):
    """What a fetch cost the store."""

    requests: int
    bytes: int
    """As they came over the network: compressed."""


class ChunkSource(Protocol):
    """The data of one layer in a shared store. Used on one event loop, by several calls at once."""

    chunk_size: int
    """Bytes of a chunk: that of layer.json."""
    chunks: int

    async def fetch(self, first: int, count: int, deliver: Deliver) -> FetchCost:
        """Deliver the chunks first..first + count, each once, in any order; neighbours come in few large requests.

        The bytes need not be checked: `deliver` does. What was delivered before an error stays delivered. A cancel ends
        it soon; nothing is delivered after it has returned or raised.
        :raises UnavailableError: the store cannot be reached, or is too slow.
        :raises IntegrityError: an object of the store is damaged or missing; another try gives the same.
        """
        ...


class Sources(Protocol):
    """The shared store, as the loader sees it."""

    def open_source(self, layer: LayerRecord) -> ChunkSource:
        """Called in a thread; reads what lies beside the layer, not the network.

        :raises IntegrityError: what lies beside the layer cannot be used.
        :raises UnavailableError: this node has no store that has it.
        """
        ...

    def location(self, layer: LayerRecord) -> str | None:
        """The layer's data file, raw and whole, on a file system that is mounted here; None where the store has no
        such file. Called in a thread."""
        ...


class LayerCounts(NamedTuple):
    """Of one layer on this node."""

    source: str
    """`local`, `direct`, `pre-content` or `prefetch`."""
    present_bytes: int
    fetched_bytes: int
    """From the store, compressed, since the layer came here."""
    requests: int
    reads_waited: int
    wait_p50_ms: float
    wait_p99_ms: float
    errors: int


class LayerLoader(Protocol):
    """Safe from several threads. A layer without `remote.json` is whole, and costs it nothing."""

    def mount(self, layer: LayerRecord) -> int:
        """A detached mount of a layer whose metadata was checked, its data being ready to be read on demand. Blocks:
        called in a thread.

        :raises IntegrityError: the files are not the layer's, or the kernel takes them for no image.
        :raises UnavailableError: the data is not here and cannot be had.
        :raises CapacityError: no room for it.
        """
        ...

    def adopt(self, digest: str) -> None:
        """An earlier process has mounted the layer, and somebody may have that mount: what `unmounted` ends. Quick."""
        ...

    def unmounted(self, digest: str) -> None:
        """Nobody has the layer's mounts any more. Blocks: called in a thread."""
        ...

    def fetch_all(self, layers: Sequence[LayerRecord], progress: Callable[[int], None]) -> None:
        """Have all data of these layers here: `data.erofs` is whole and checked afterwards. Blocks: called in a thread.
        `progress` is told the bytes that came, about once a second; what it raises ends the call.

        :raises IntegrityError: the store has not what the layer's digests name.
        :raises UnavailableError: the store cannot be reached.
        :raises CapacityError: no room.
        """
        ...

    def verify(self, layer: LayerRecord) -> None:
        """Hold what is here of a layer against its digest. A chunk that came from the store and is damaged is fetched
        anew when it is read.

        :raises IntegrityError: says what is damaged.
        """
        ...

    def evict(self, layer: LayerRecord) -> int | None:
        """Forget the data of a layer that can be had again. The bytes of the disk that it gave; None: it is used."""
        ...

    def stats(self, layer: LayerRecord) -> LayerCounts: ...

    def close(self) -> None:
        """End fetching. Readers that wait stay blocked for the next process, where a fork server holds the group."""
        ...
