"""The edge's books: slots, admission, registry, log, identity, each pure."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.edge.admission import Admission
from dsec.edge.eventlog import MAX_ENTRIES, EventLog, shortened
from dsec.edge.identity import load_identity
from dsec.edge.registry import Registry
from dsec.edge.sandbox import Sandbox
from dsec.edge.slots import RANGE, Slots
from libdsec.protocol.errors import (
    AdmissionRejectedError,
    ConflictError,
    SandboxFailedError,
    SandboxNotFoundError,
    SandboxStateError,
    UnavailableError,
)
from libdsec.protocol.lifecycle import TRANSITIONS, Operation, State
from libdsec.protocol.spec import Requests, SandboxSpec


def sandbox(name: str = "a" * 24, **spec: object) -> Sandbox:
    made = SandboxSpec("tiny:1", **spec)  # type: ignore[arg-type]
    return Sandbox(id=name, spec=made, node="n", principal="p", now=0.0, monotonic=0.0)


@given(st.lists(st.booleans(), max_size=200))
def test_slots_never_share_an_id(steps: list[bool]) -> None:
    slots, taken = Slots(0x7000_0000, 8), []
    for take in steps:
        if take and len(taken) < 8:
            taken.append(slots.take())
        elif taken:
            slots.give_back(taken.pop(0))
        ranges = sorted(slot.id_base for slot in taken)
        assert all(b - a >= RANGE for a, b in itertools.pairwise(ranges))
        keepers = {slot.keeper for slot in taken}
        assert len(keepers) == len(taken)
        assert all(0x7000_0000 <= keeper < 0x7000_0000 + RANGE <= base for keeper in keepers for base in ranges)
        assert slots.taken == len(taken)


@given(st.integers(-3 * RANGE, 3 * RANGE), st.sets(st.integers(0, 7), min_size=1, max_size=4))
def test_what_was_made_under_another_base_keeps_its_ids_and_shares_none(moved: int, indexes: set[int]) -> None:
    earlier, slots = Slots(0x7000_0000 + moved, 8), Slots(0x7000_0000, 8)
    made = [slot for slot in (earlier.take() for _ in range(8)) if slot.index in indexes]
    taken = [slots.adopt(slot.index, slot.id_base) for slot in made]
    assert taken == made
    with contextlib.suppress(AdmissionRejectedError):
        while True:
            taken.append(slots.take())
    for one, other in itertools.combinations(taken, 2):
        for keeper, base in ((one.keeper, other.id_base), (other.keeper, one.id_base)):
            assert not base <= keeper < base + RANGE
        assert abs(one.id_base - other.id_base) >= RANGE
        assert one.keeper != other.keeper
    assert len({slot.index for slot in taken}) == len(taken)
    for slot in taken:
        slots.give_back(slot)
    assert sorted(slots.take().index for _ in range(8)) == list(range(8))


def test_a_slot_rests_as_long_as_possible_and_is_given_back_once() -> None:
    slots = Slots(0x7000_0000, 3)
    first, second = slots.take(), slots.take()
    slots.give_back(first)
    slots.give_back(second)
    assert slots.take().index == 2
    assert slots.take().index == first.index
    with pytest.raises(ValueError, match="not taken"):
        slots.give_back(second)
    slots.take()
    with pytest.raises(AdmissionRejectedError) as caught:
        slots.take()
    assert caught.value.details["resource"] == "ids"


def test_admission_names_the_resource_and_takes_nothing_when_it_refuses() -> None:
    admission = Admission("node", 100, 10)
    admission.take(Requests(60, 4))
    with pytest.raises(AdmissionRejectedError, match="memory"):
        admission.take(Requests(41, 1))
    with pytest.raises(AdmissionRejectedError, match="pids"):
        admission.take(Requests(1, 7))
    assert (admission.memory_requested, admission.pids_requested) == (60, 4)
    admission.take(Requests(40, 6))
    admission.give_back(Requests(60, 4))
    assert (admission.memory_requested, admission.pids_requested) == (40, 6)


def test_the_log_is_bounded_and_reads_answers_late() -> None:
    log = EventLog()
    log.add(1.0, "exec", {"argv": "true"}, msgspec.msgpack.encode({"exit_code": 3}))
    log.add(2.0, "exec", {"argv": "true"}, b"\xc1 no map")
    exited, broken = log.read(10)
    assert exited.detail == {"argv": "true", "exit_code": 3}
    assert "unreadable" in broken.detail
    for number in range(MAX_ENTRIES):
        log.add(float(number), "x")
    assert len(log.read(10_000)) == MAX_ENTRIES
    assert log.dropped == 2
    assert [e.at for e in log.read(2)] == [MAX_ENTRIES - 2, MAX_ENTRIES - 1]
    assert log.read(0) == ()
    assert len(shortened("x" * 1000)) == 200


@pytest.mark.parametrize("current", list(State))
@pytest.mark.parametrize("following", list(State))
def test_states_move_along_the_table_only(current: State, following: State) -> None:
    one = sandbox()
    one.state = current
    if following in TRANSITIONS[current]:
        assert one.move(current, following)
        assert one.state is following
    else:
        with pytest.raises(ValueError, match="no transition"):
            one.move(current, following)
        assert one.state is current


def test_a_move_from_another_state_does_nothing() -> None:
    one = sandbox()
    assert not one.move(State.RUNNING, State.STOPPING)
    assert one.state is State.CREATING
    assert not one.settled.is_set()
    assert one.move(State.CREATING, State.FAILED)
    assert one.settled.is_set()


def test_guards_say_state_and_cause() -> None:
    one = sandbox()
    with pytest.raises(SandboxStateError) as caught:
        one.require(Operation.EXEC, "run a command")
    assert caught.value.details["state"] == "creating"
    assert caught.value.details["allowed"] == ["paused", "pausing", "resuming", "running"]
    one.state, one.cause, one.message = State.FAILED, "init_killed", "PID 1 was killed by signal 9"
    with pytest.raises(SandboxFailedError, match="killed by signal 9"):
        one.require(Operation.FILES, "use files")


def test_the_registry_forgets_the_oldest_ends_with_their_keys() -> None:
    registry = Registry(kept_final=2)
    made = [sandbox(f"{n:024d}") for n in range(4)]
    for one in made:
        registry.add(one, f"key{one.id}")
    for one in made[:3]:
        registry.finish(one)
    registry.finish(made[2])
    with pytest.raises(SandboxNotFoundError):
        registry.get(made[0].id)
    assert registry.by_key("p", f"key{made[0].id}", made[0].spec) is None
    assert registry.by_key("p", f"key{made[1].id}", made[1].spec) is made[1]
    assert registry.by_key("other", f"key{made[1].id}", made[1].spec) is None
    with pytest.raises(ConflictError):
        registry.by_key("p", f"key{made[1].id}", SandboxSpec("other:1"))
    assert list(registry.live()) == [made[3]]
    assert len(list(registry.everything())) == 3
    registry.discard(made[3])
    assert registry.by_key("p", f"key{made[3].id}", made[3].spec) is None


def test_identity_is_drawn_once_and_kept(tmp_path: Path) -> None:
    first = load_identity(str(tmp_path))
    assert load_identity(str(tmp_path)) == first
    (tmp_path / "edge.json").write_text('{"schema": 99, "edge_prefix": "abcdefgh"}')
    with pytest.raises(UnavailableError, match="newer"):
        load_identity(str(tmp_path))
    (tmp_path / "edge.json").write_text("{")
    with pytest.raises(UnavailableError):
        load_identity(str(tmp_path))
    with pytest.raises(UnavailableError):
        load_identity(str(tmp_path / "missing"))
