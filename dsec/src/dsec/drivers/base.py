"""The contract between an edge and a driver.

An edge decides (admission, ids, limits, when to stop); a driver does. For each sandbox the edge hands over an `Order`
with everything resolved and gets an `Instance`. The driver takes what the sandbox needs of the machine (mounts,
control groups, disk, processes) and gives all of it back in `Instance.destroy`, or before `Driver.create` raises.

An edge may die and leave its sandboxes; its successor gets each of them again by `Driver.adopt`, from the order and
from what `Instance.keep` gave to be written down, and has everything else taken away by `Driver.sweep`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from dsec.bus import Answerer, Caller
from libdsec.protocol.errors import DSecError
from libdsec.protocol.spec import Limits, SandboxSpec


@dataclass(frozen=True, slots=True)
class Slot:
    """Host ids that are one sandbox's alone while it lives."""

    index: int
    id_base: int
    """First of 65,536 ids."""
    keeper: int
    """uid and gid of PID 1; in no sandbox's range."""


@dataclass(frozen=True, slots=True)
class Order:
    """A sandbox to be made, nothing left to decide."""

    id: str
    spec: SandboxSpec
    layers: tuple[str, ...]
    """Digests, lowest first."""
    slot: Slot
    limits: Limits
    """With the node's defaults in: memory and pids are given."""
    hostname: str
    timeout_s: float


class End(NamedTuple):
    """Why a sandbox ended without being asked to."""

    cause: str
    """`init_killed`, `init_exited`, `memory`, `channel_lost`."""
    message: str
    detail: dict[str, Any]


OnEnd = Callable[[End], None]

OnKnown = Callable[[str, bool, Answerer], Caller | None]
"""(tag, running, answerer): a call of an earlier edge that the sandbox still knows; `running`, or its answer follows.
Who hears its answer; None: nobody, it is thrown away."""


@runtime_checkable
class Acknowledging(Protocol):
    """What an answerer of a call with a tag can do beyond `Answerer`."""

    def acknowledge(self) -> None:
        """The answer is recorded: the sandbox may forget it. Until then a later edge gets it again by `on_known`. Of
        a call without a tag, and a second time, nothing happens; never raises."""


@dataclass(frozen=True, slots=True)
class Captured:
    """What a sandbox has written over its layers, as it was at one moment."""

    path: str
    """A directory as overlayfs keeps an upper, every id in it shifted by the slot's `id_base`. Only to be read."""
    since: float | None
    """By `time.monotonic`: the sandbox stands still since then. None: it goes on meanwhile."""
    check: Callable[[], None]
    """From any thread, after reading, and now and then during it: `SandboxFailedError` where the sandbox was ended
    meanwhile, and what was read may not be all there was."""
    stood_ms: float = 0.0
    """For how long it stood still before, where it goes on."""


class Instance(Protocol):
    """One running sandbox."""

    @property
    def pid(self) -> int:
        """PID 1 as the host sees it."""

    def call(self, method: str, args: Any, caller: Caller, *, streaming: bool, tag: str = "") -> Answerer:
        """Open a call; method and args as docs/wire.md says of edge ↔ init, defaults resolved. By its `tag` a later
        edge knows it again. Legal only while the sandbox is not paused.

        A `streaming` call is canceled when its caller abandons it, any other goes on; the caller keeps granting credit.
        When the sandbox ends, every open call ends with `SandboxFailedError` (or the error given to `destroy`).

        :raises InvalidArgumentError: the arguments do not fit into a frame.
        :raises QuotaExceededError: too many calls are open.
        :raises SandboxFailedError: the sandbox has ended.
        :raises UnavailableError: it takes no input at the moment; nothing was sent.
        """

    def usage(self) -> dict[str, int]:
        """`memory_bytes`, `pids`, as far as they are known."""

    def keep(self) -> bytes:
        """What `Driver.adopt` needs to find it again; stays the same for its whole life.

        :raises SandboxFailedError: it was given back.
        """

    async def pause(self) -> None:
        """Stop everything inside and give its memory back as far as that can be. Time stands still for its calls'
        timeouts. Paused again is fine.

        :raises DSecError: it could not be done; everything runs again.
        """

    async def resume(self) -> None:
        """Running again, seen to answer; legal also when it is not paused.

        :raises DSecError: it could not be done; it stays paused, or its end is told by `on_end`.
        """

    def capture(self) -> AbstractAsyncContextManager[Captured]:
        """What it has written, to be read inside the block. It stands still meanwhile, or goes on where a snapshot
        could be had; whatever happens inside, afterwards it is as it was before: one that was paused is paused. Calls
        that are made meanwhile may wait for its end. One capture at a time; no pause or resume in it.

        :raises DSecError: it could not be done; everything runs as before, or the sandbox has ended.
        """

    def hasten(self) -> None:
        """It will be destroyed: a pause or resume that is under way gives way and raises soon, and none is begun any
        more; the `check` of what is captured raises. Its end is not told by `on_end` from here on. Nothing more is
        legal than `keep`, `usage` and `destroy`. Idempotent, never raises.
        """

    async def destroy(self, error: DSecError) -> None:
        """End every process of it and give back everything. Open calls end with `error`.

        Idempotent: a second one joins the first. Legal in every state, also after an end of its own.

        :raises InternalError: something could not be given back; nothing more can be done about it by a repetition.
        """


class Driver(Protocol):
    """One backend of one node."""

    backend: str

    def check(self, spec: SandboxSpec) -> None:
        """Refuse what this backend or machine cannot honour, before anything is taken.

        :raises UnsupportedOperationError: names the option.
        """

    async def start(self) -> None:
        """Make ready. What an earlier edge of this node left stays as it is until `adopt` and `sweep`.

        :raises UnavailableError: the machinery does not start; says why.
        """

    async def adopt(self, order: Order, kept: bytes, on_end: OnEnd, on_known: OnKnown, *, paused: bool) -> Instance:
        """A sandbox that an earlier edge made. `on_known` is called for each call that it knows, before this returns,
        or of a paused one before its first `resume` returns. Calls that are not named have never reached it. When it
        is canceled the sandbox goes on and is nobody's: only a later edge may adopt or sweep it.

        :raises SandboxFailedError: it has ended; what it had is taken away by `sweep`.
        :raises DSecError: it does not answer; the same.
        """

    async def sweep(self) -> None:
        """After every `adopt`, once: end and take away whatever an earlier edge left and nobody adopted."""

    async def create(self, order: Order, on_end: OnEnd) -> Instance:
        """A running sandbox: it has answered. `on_end` is called at most once, within a second of its end, and not
        for an end by `destroy`. Whatever happens (a cancel too), nothing of a sandbox that was not returned is left
        behind.

        :raises UnsupportedOperationError: the machine cannot do what was asked.
        :raises UnavailableError: nothing was made; may be tried again.
        :raises InternalError: a step failed that should not; details name the stage.
        """

    async def close(self, *, leave: bool = False) -> None:
        """End the machinery. Every instance was destroyed before; with `leave` what is left goes on, to be adopted."""
