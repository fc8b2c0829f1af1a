"""A driver whose sandboxes are objects in this process: a handful of programs, a dictionary for a file system.

It keeps the whole contract of `dsec.drivers.base` (windows, credit, cancel, timeouts, ends of its own, adoption), so
that everything above a driver can be tested without a kernel. Beyond the contract it can be told to fail: `refuse`
makes the next create raise, `gate` holds creates back, `FakeInstance.die` ends a sandbox as a crash would, and `crash`
ends the driver as a killed edge does, for another with the same `machine` to adopt what it left.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from dsec.bus import Caller
from dsec.drivers.base import Captured, End, OnEnd, OnKnown, Order
from libdsec.protocol.errors import DeadlineExceededError, DSecError, SandboxFailedError, UnsupportedOperationError
from libdsec.protocol.spec import SandboxSpec

from .fake_call import FakeCall
from .fake_sandbox import FakeSandbox

Machine = dict[str, FakeSandbox]
"""What runs, whoever made it."""


class FakeInstance:
    def __init__(
        self,
        sandbox: FakeSandbox,
        on_end: OnEnd,
        forget: Callable[[str], object],
        on_known: OnKnown | None = None,
    ) -> None:
        """`on_known` is still to be told what it knows, when it was adopted while it was paused."""
        self.order = sandbox.order
        self.pid = sandbox.pid
        self.destroyed = False
        self.refuse_pause: DSecError | None = None
        """Raised by the next pause."""
        self.slow_pause: asyncio.Event | None = None
        """A pause takes until it is set, or the sandbox's end comes."""
        self._hastened = asyncio.Event()
        self._sandbox = sandbox
        self._on_end = on_end
        self._forget = forget
        self._on_known = on_known

    @property
    def files(self) -> dict[str, bytes]:
        return self._sandbox.files

    @property
    def paused(self) -> bool:
        return self._sandbox.paused

    def call(self, method: str, args: Any, caller: Caller, *, streaming: bool, tag: str = "") -> FakeCall:
        return self._sandbox.call(method, args, caller, streaming=streaming, tag=tag)

    def usage(self) -> dict[str, int]:
        return {"memory_bytes": 0, "pids": 1 + self._sandbox.running}

    def keep(self) -> bytes:
        if self.destroyed:
            raise SandboxFailedError(f"cannot use sandbox {self.order.id}: it has been given back")
        return msgspec.msgpack.encode(self.pid)

    async def pause(self) -> None:
        refusal, self.refuse_pause = self.refuse_pause, None
        await asyncio.sleep(0)
        if self.slow_pause is not None:
            waits = [asyncio.ensure_future(event.wait()) for event in (self.slow_pause, self._hastened)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        self._check()
        if refusal is not None:
            raise refusal
        self._sandbox.pause()

    async def resume(self) -> None:
        await asyncio.sleep(0)
        self._check()
        self._sandbox.resume()
        if self._on_known is not None:
            self._sandbox.meet(self._on_known)
            self._on_known = None

    @asynccontextmanager
    async def capture(self) -> AsyncIterator[Captured]:
        await asyncio.sleep(0)
        self._check()
        paused = self.paused
        with tempfile.TemporaryDirectory(prefix="dsec-fake-") as upper:
            _write_all(Path(upper), self.files)
            self._sandbox.pause()
            try:
                yield Captured(upper, time.monotonic(), self._check)
            finally:
                if not paused and self._sandbox.ended is None:
                    self._sandbox.resume()

    def die(self, end: End) -> None:
        """End as a crash would."""
        if self._sandbox.ended is None:
            self._sandbox.end(
                SandboxFailedError(
                    f"cannot use sandbox {self.order.id}: {end.message}", sandbox=self.order.id, cause=end.cause
                )
            )
            self._on_end(end)

    def hasten(self) -> None:
        self._hastened.set()

    async def destroy(self, error: DSecError) -> None:
        if self._sandbox.ended is None:
            self._sandbox.end(error)
        if not self.destroyed:
            self.destroyed = True
            self._forget(self.order.id)

    def leave(self) -> None:
        """Let go of it without ending anything."""
        self._sandbox.leave()

    def _check(self) -> None:
        if self._sandbox.ended is not None:
            raise self._sandbox.ended
        if self._hastened.is_set():
            raise SandboxFailedError(f"cannot use sandbox {self.order.id}: it is being ended", sandbox=self.order.id)


class FakeDriver:
    """Implements `dsec.drivers.base.Driver`."""

    def __init__(self, backend: str = "container", machine: Machine | None = None) -> None:
        self.backend = backend
        self.machine: Machine = {} if machine is None else machine
        self.instances: dict[str, FakeInstance] = {}
        """Those not given back."""
        self.created = 0
        self.started = False
        self.refuse: DSecError | None = None
        self.gate: asyncio.Event | None = None

    def check(self, spec: SandboxSpec) -> None:
        if any(spec.network_rules.values()):
            raise UnsupportedOperationError("cannot allow network access: the fake has none", option="network_rules")
        if spec.network != "private":
            raise UnsupportedOperationError("cannot give the host's network: the fake has none", option="network")

    async def start(self) -> None:
        self.started = True

    async def adopt(self, order: Order, kept: bytes, on_end: OnEnd, on_known: OnKnown, *, paused: bool) -> FakeInstance:
        await asyncio.sleep(0)
        sandbox = self.machine.get(order.id)
        if sandbox is None or sandbox.ended is not None or sandbox.pid != msgspec.msgpack.decode(kept):
            raise SandboxFailedError(f"cannot use sandbox {order.id}: it has ended", sandbox=order.id)
        if paused:
            sandbox.pause()
            return self._instance(sandbox, on_end, on_known)
        sandbox.resume()
        sandbox.meet(on_known)
        return self._instance(sandbox, on_end)

    async def sweep(self) -> None:
        for name in [name for name in self.machine if name not in self.instances]:
            self.machine.pop(name).end(SandboxFailedError(f"cannot use sandbox {name}: nobody adopted it"))

    async def create(self, order: Order, on_end: OnEnd) -> FakeInstance:
        refusal, self.refuse = self.refuse, None
        if refusal is not None:
            raise refusal
        try:
            async with asyncio.timeout(order.timeout_s):
                await (self.gate.wait() if self.gate is not None else asyncio.sleep(0))
        except TimeoutError:
            raise DeadlineExceededError(f"cannot create sandbox {order.id}: not done in {order.timeout_s} s") from None
        sandbox = FakeSandbox(order, 100_000 + order.slot.index)
        self.machine[order.id] = sandbox
        self.created += 1
        return self._instance(sandbox, on_end)

    def crash(self) -> None:
        """Gone at once, as a killed edge is: nothing is ended, nobody is told."""
        for instance in self.instances.values():
            instance.leave()
        self.instances.clear()
        self.started = False

    async def close(self, *, leave: bool = False) -> None:
        if leave:
            self.crash()
        self.started = False

    def _instance(self, sandbox: FakeSandbox, on_end: OnEnd, on_known: OnKnown | None = None) -> FakeInstance:
        instance = FakeInstance(sandbox, on_end, self._given_back, on_known)
        self.instances[sandbox.order.id] = instance
        return instance

    def _given_back(self, sandbox: str) -> None:
        self.instances.pop(sandbox, None)
        self.machine.pop(sandbox, None)


def _write_all(directory: Path, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        where = directory / path.lstrip("/")
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(content)
