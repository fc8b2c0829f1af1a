"""Any order of operations, crashes and cancels: states keep to the table, every call is answered, nothing is kept."""

from __future__ import annotations

import asyncio
import tempfile

import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsec.drivers.base import End
from dsec.testing.fake_clock import FakeClock
from dsec.testing.fake_node import FakeNode, fake_node
from dsec.testing.wire_client import WireCall, WireClient
from libdsec.protocol.errors import DSecError, InternalError
from libdsec.protocol.frames import Kind
from libdsec.protocol.lifecycle import ALLOWED, FINAL, TRANSITIONS, Operation, State

OPERATIONS = (
    "create",
    "create-held",
    "exec",
    "sleep",
    "stop",
    "pause",
    "resume",
    "refuse-pause",
    "crash",
    "cancel",
    "open-gate",
    "time",
    "refuse",
    "settle",
)
STEPS = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 5)), max_size=25)


class Run:
    """One sequence of steps against one node, with what was seen of each sandbox."""

    def __init__(self, node: FakeNode, client: WireClient, clock: FakeClock) -> None:
        self.node, self.client, self.clock = node, client, clock
        self.creates: list[WireCall] = []
        self.others: list[WireCall] = []
        self.seen: dict[str, list[State]] = {}
        self.gate = asyncio.Event()

    async def step(self, operation: str, which: int) -> None:
        record = self.pick(which)
        if operation in ("create", "create-held"):
            self.node.driver.gate = self.gate if operation == "create-held" else None
            spec = {"image": "tiny:1", "ttl_idle_s": 10 + which, "deadline_s": 50}
            self.creates.append(self.client.start("sandbox.create", spec=spec))
        elif operation == "open-gate":
            self.gate.set()
            self.gate = asyncio.Event()
        elif operation == "refuse":
            self.node.driver.refuse = InternalError("cannot create: a step failed")
        elif operation == "time":
            self.clock.advance(4)
            self.node.edge.reap()
        elif operation == "cancel" and self.creates:
            self.creates[which % len(self.creates)].send(Kind.CANCEL)
        elif operation == "crash" and self.node.driver.instances:
            instances = list(self.node.driver.instances.values())
            instances[which % len(instances)].die(End("init_killed", "PID 1 was killed", {}))
        elif operation == "refuse-pause" and self.node.driver.instances:
            instances = list(self.node.driver.instances.values())
            instances[which % len(instances)].refuse_pause = InternalError("cannot pause: a step failed")
        elif operation in ("stop", "pause", "resume") and record is not None:
            self.others.append(self.client.start(f"sandbox.{operation}", sandbox=record))
        elif operation in ("exec", "sleep") and record is not None:
            argv = ["true"] if operation == "exec" else ["sleep", "1000"]
            self.others.append(self.client.start("exec", sandbox=record, argv=argv))
        if operation == "settle" or which % 2:
            await self.client.call("server.info")
        self.look()

    def pick(self, which: int) -> str | None:
        records = sorted(self.node.edge.registry.everything(), key=lambda s: s.id)
        return records[which % len(records)].id if records else None

    def look(self) -> None:
        """Note each sandbox's state; between two looks it may have gone several steps, but only along the table."""
        for sandbox in self.node.edge.registry.everything():
            states = self.seen.setdefault(sandbox.id, [State.CREATING])
            if states[-1] is not sandbox.state:
                assert sandbox.state in reachable(states[-1])
                states.append(sandbox.state)

    async def finish(self) -> None:
        """Everything is stopped: every call is answered, everything is given back."""
        self.gate.set()
        await self.node.edge.stop_all()
        for call in [*self.creates, *self.others]:
            try:
                await call.answer()
            except DSecError:
                continue
        self.look()
        edge = self.node.edge
        assert not self.node.driver.instances
        assert (edge.slots.taken, edge.admission.memory_requested, edge.admission.pids_requested) == (0, 0, 0)
        assert len(edge.registry) == 0
        assert all(s.state in FINAL and s.cause and not s.open for s in edge.registry.everything())


def reachable(state: State) -> set[State]:
    found, left = set(), [state]
    while left:
        for following in TRANSITIONS[left.pop()] - found:
            found.add(following)
            left.append(following)
    return found


@given(STEPS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_order_of_operations(steps: list[tuple[str, int]]) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        with tempfile.TemporaryDirectory(prefix="n") as directory:
            async with fake_node(directory, clock, kept_final=100) as node, node.client() as client:
                run = Run(node, client, clock)
                for operation, which in steps:
                    await run.step(operation, which)
                await run.finish()

    uvloop.run(scenario())


def test_what_lives_takes_commands_and_any_may_be_stopped() -> None:
    for operation in (Operation.EXEC, Operation.FILES, Operation.PAUSE, Operation.RESUME):
        assert ALLOWED[operation] == {State.RUNNING, State.PAUSING, State.PAUSED, State.RESUMING}
    assert ALLOWED[Operation.STOP] == ALLOWED[Operation.INSPECT] == set(State)
