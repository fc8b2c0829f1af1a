"""A driver whose sandboxes are objects in this process: a handful of programs, a dictionary for a file system.

It keeps the whole contract of `dsec.drivers.base` (windows, credit, cancel, timeouts, ends of its own), so that
everything above a driver can be tested without a kernel. Beyond the contract it can be told to fail: `refuse` makes
the next create raise, `gate` holds creates back, `FakeInstance.die` ends a sandbox as a crash would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from dsec.bus import Caller, encode_error
from dsec.drivers.base import End, OnEnd, Order
from libdsec.protocol.errors import (
    DeadlineExceededError,
    DSecError,
    InvalidArgumentError,
    QuotaExceededError,
    SandboxFailedError,
    UnsupportedOperationError,
)
from libdsec.protocol.frames import MAX_PAYLOAD
from libdsec.protocol.spec import SandboxSpec

from .fake_call import FakeCall
from .fake_files import FILE_OPERATIONS
from .fake_programs import run_program

MAX_CALLS = 1024


class FakeInstance:
    def __init__(self, order: Order, on_end: OnEnd, forget: Callable[[str], object]) -> None:
        self.order = order
        self.pid = 100_000 + order.slot.index
        self.files: dict[str, bytes] = {}
        self.destroyed = False
        self._on_end = on_end
        self._forget = forget
        self._calls: dict[FakeCall, asyncio.Task[None]] = {}
        self._ended: DSecError | None = None

    def call(self, method: str, args: Any, caller: Caller, *, streaming: bool) -> FakeCall:
        if self._ended is not None:
            raise self._ended
        payload = msgspec.msgpack.encode({"method": method, "args": args})
        if len(payload) > MAX_PAYLOAD:
            raise InvalidArgumentError(f"cannot call {method}: its arguments take {len(payload)} bytes")
        if len(self._calls) >= MAX_CALLS:
            raise QuotaExceededError(f"cannot call {method}: {MAX_CALLS} calls are open in this sandbox")
        call = FakeCall(caller, streaming)
        task = asyncio.get_running_loop().create_task(
            self._answer(call, method, msgspec.msgpack.decode(payload)["args"])
        )
        self._calls[call] = task
        task.add_done_callback(lambda _: self._calls.pop(call, None))
        return call

    async def _answer(self, call: FakeCall, method: str, args: dict[str, Any]) -> None:
        try:
            if method == "exec":
                call.result(await run_program(call, args))
            elif method == "ping":
                call.result({"commands": len(self._calls) - 1, "sessions": 0})
            elif method in FILE_OPERATIONS:
                call.result(await FILE_OPERATIONS[method](self.files, call, args))
            else:
                raise UnsupportedOperationError(f"cannot call {method}: the fake driver has none")
        except DSecError as error:
            call.error(encode_error(error))

    def usage(self) -> dict[str, int]:
        return {"memory_bytes": 0, "pids": 1 + len(self._calls)}

    def die(self, end: End) -> None:
        """End as a crash would."""
        if self._ended is None:
            self._end(
                SandboxFailedError(
                    f"cannot use sandbox {self.order.id}: {end.message}", sandbox=self.order.id, cause=end.cause
                )
            )
            self._on_end(end)

    async def destroy(self, error: DSecError) -> None:
        if self._ended is None:
            self._end(error)
        if not self.destroyed:
            self.destroyed = True
            self._forget(self.order.id)

    def _end(self, error: DSecError) -> None:
        self._ended = error
        calls, self._calls = self._calls, {}
        payload = encode_error(error)
        for call, task in calls.items():
            task.cancel()
            call.error(payload)


class FakeDriver:
    """Implements `dsec.drivers.base.Driver`."""

    def __init__(self, backend: str = "container") -> None:
        self.backend = backend
        self.instances: dict[str, FakeInstance] = {}
        """Those not given back."""
        self.created = 0
        self.started = False
        self.refuse: DSecError | None = None
        self.gate: asyncio.Event | None = None

    def check(self, spec: SandboxSpec) -> None:
        if any(spec.network_rules.values()):
            raise UnsupportedOperationError("cannot allow network access: the fake has none", option="network_rules")

    async def start(self) -> None:
        self.started = True

    async def create(self, order: Order, on_end: OnEnd) -> FakeInstance:
        refusal, self.refuse = self.refuse, None
        if refusal is not None:
            raise refusal
        try:
            async with asyncio.timeout(order.timeout_s):
                await (self.gate.wait() if self.gate is not None else asyncio.sleep(0))
        except TimeoutError:
            raise DeadlineExceededError(f"cannot create sandbox {order.id}: not done in {order.timeout_s} s") from None
        instance = FakeInstance(order, on_end, lambda sandbox: self.instances.pop(sandbox, None))
        self.instances[order.id] = instance
        self.created += 1
        return instance

    async def close(self) -> None:
        self.started = False
