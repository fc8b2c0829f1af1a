"""What is due, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsec.edge.reaper import Reaper
from dsec.edge.sandbox import Sandbox
from libdsec.protocol.lifecycle import State
from libdsec.protocol.spec import SandboxSpec


def sandbox(idle: float | None = None, deadline: float | None = None, at: float = 0.0) -> Sandbox:
    spec = SandboxSpec("tiny:1", ttl_idle_s=idle, deadline_s=deadline)
    made = Sandbox(id="x" * 24, spec=spec, node="n", principal="p", now=at, monotonic=at)
    made.state = State.RUNNING
    return made


def test_without_times_nothing_is_ever_due() -> None:
    reaper = Reaper()
    reaper.watch(sandbox())
    assert reaper.next_due() is None
    assert reaper.due(1e12) == []


def test_use_puts_the_idle_end_off() -> None:
    reaper, one = Reaper(), sandbox(idle=10)
    reaper.watch(one)
    assert reaper.next_due() == 10
    one.touch(7, 7)
    assert reaper.due(10) == []
    assert reaper.next_due() == 17
    assert reaper.due(17) == [(one, "idle_ttl")]


def test_a_running_call_is_use() -> None:
    reaper, one = Reaper(), sandbox(idle=10)
    reaper.watch(one)
    one.open.add(object())  # type: ignore[arg-type]
    assert reaper.due(10) == []
    assert reaper.due(25) == []
    one.open.clear()
    one.touch(26, 26)
    assert reaper.due(35.5) == []
    assert reaper.due(36) == [(one, "idle_ttl")]


def test_the_deadline_holds_for_busy_ones_too() -> None:
    reaper, one = Reaper(), sandbox(idle=10, deadline=25)
    reaper.watch(one)
    one.open.add(object())  # type: ignore[arg-type]
    assert reaper.due(10) == []
    assert reaper.due(20) == []
    assert reaper.next_due() == 25
    assert reaper.due(25) == [(one, "deadline")]


def test_ended_ones_are_let_go_of() -> None:
    reaper = Reaper()
    for _ in range(5000):
        one = sandbox(idle=1e6)
        reaper.watch(one)
        one.state = State.STOPPED
        reaper.ended(one)
    assert len(reaper._heap) < 200
    assert reaper.due(1e9) == []


@given(
    st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=1, max_size=20),
    st.lists(st.floats(0, 30), max_size=30),
)
def test_each_is_named_once_and_never_early(times: list[tuple[float, float]], steps: list[float]) -> None:
    reaper, now, named = Reaper(), 0.0, []
    made = [sandbox(idle=idle, deadline=deadline) for idle, deadline in times]
    for one in made:
        reaper.watch(one)
    for step in steps:
        now += step
        for one, cause in reaper.due(now):
            named.append(one)
            spec = one.spec
            assert now >= (spec.deadline_s if cause == "deadline" else spec.ttl_idle_s)  # type: ignore[operator]
            one.state = State.STOPPED
    assert len(named) == len({id(one) for one in named})
    due = [one for one in made if min(one.spec.ttl_idle_s, one.spec.deadline_s) <= now]  # type: ignore[type-var]
    assert {id(one) for one in named} == {id(one) for one in due}
