"""What runs in a fake sandbox: it outlives the driver that made it, as a real one does."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from dsec.bus import Caller, Unheard, encode_error
from dsec.drivers.base import OnKnown, Order
from libdsec.protocol.errors import (
    DSecError,
    InvalidArgumentError,
    QuotaExceededError,
    UnavailableError,
    UnsupportedOperationError,
)
from libdsec.protocol.frames import MAX_PAYLOAD

from .fake_call import FakeCall
from .fake_files import FILE_OPERATIONS
from .fake_programs import run_program

MAX_CALLS = 1024


class FakeSandbox:
    def __init__(self, order: Order, pid: int) -> None:
        self.order = order
        self.pid = pid
        self.files: dict[str, bytes] = {}
        self.ended: DSecError | None = None
        self._awake = asyncio.Event()
        self._awake.set()
        self._calls: dict[FakeCall, asyncio.Task[None]] = {}
        """Those that run, and those whose answer is kept."""

    @property
    def paused(self) -> bool:
        return not self._awake.is_set()

    @property
    def calls(self) -> list[FakeCall]:
        """Those that run, and those whose answer is kept."""
        return list(self._calls)

    @property
    def running(self) -> int:
        return sum(call.running for call in self._calls)

    def call(self, method: str, args: Any, caller: Caller, *, streaming: bool, tag: str) -> FakeCall:
        if self.ended is not None:
            raise self.ended
        if self.paused:
            raise UnavailableError(f"cannot call {method}: sandbox {self.order.id} is paused")
        payload = msgspec.msgpack.encode({"method": method, "args": args})
        if len(payload) > MAX_PAYLOAD:
            raise InvalidArgumentError(f"cannot call {method}: its arguments take {len(payload)} bytes")
        if self.running >= MAX_CALLS:
            raise QuotaExceededError(f"cannot call {method}: {MAX_CALLS} calls are open in this sandbox")
        call = FakeCall(caller, streaming, tag, self._awake, lambda call: self._calls.pop(call, None))
        decoded = msgspec.msgpack.decode(payload)["args"]
        self._calls[call] = asyncio.get_running_loop().create_task(self._answer(call, method, decoded))
        return call

    def pause(self) -> None:
        self._awake.clear()

    def resume(self) -> None:
        self._awake.set()

    def leave(self) -> None:
        """The edge has gone; commands go on."""
        for call in self._calls:
            call.leave()

    def meet(self, on_known: OnKnown) -> None:
        """Another edge has come."""
        for call in list(self._calls):
            call.meet(on_known(call.tag, call.running, call) or Unheard(call))

    def end(self, error: DSecError) -> None:
        self.ended = error
        calls, self._calls = self._calls, {}
        payload = encode_error(error)
        for call, task in calls.items():
            task.cancel()
            call.error(payload)

    async def _answer(self, call: FakeCall, method: str, args: dict[str, Any]) -> None:
        try:
            answer = await self._run(call, method, args)
        except DSecError as error:
            await self._awake.wait()
            call.error(encode_error(error))
        else:
            await self._awake.wait()
            call.result(answer)

    async def _run(self, call: FakeCall, method: str, args: dict[str, Any]) -> dict[str, Any]:
        if method == "exec":
            return await run_program(call, args)
        if method == "ping":
            return {"commands": self.running - 1, "sessions": 0}
        if method in FILE_OPERATIONS:
            return dict(await FILE_OPERATIONS[method](self.files, call, args))
        raise UnsupportedOperationError(f"cannot call {method}: the fake driver has none")
