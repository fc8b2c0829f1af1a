"""What every driver promises of sandboxes that outlive it, and of those that stand still."""

from __future__ import annotations

import asyncio

import pytest
from driver_calls import GONE, TIMEOUT_S, Listener, ignore, start
from driver_subjects import Make, Subject

from dsec.bus import Answerer, Caller
from dsec.drivers.base import Acknowledging, End, Instance, Order
from libdsec.protocol.errors import DSecError, SandboxFailedError
from libdsec.protocol.frames import STDOUT


class Known:
    """Who hears the answers of an earlier edge's calls."""

    def __init__(self) -> None:
        self.calls: dict[str, Listener] = {}
        self.running: set[str] = set()

    def __call__(self, tag: str, running: bool, answerer: Answerer) -> Caller | None:
        if not tag:
            return None
        listener = self.calls[tag] = Listener()
        listener.call = answerer
        if running:
            self.running.add(tag)
        return listener


def acknowledge(call: object) -> None:
    assert isinstance(call, Acknowledging)
    call.acknowledge()


async def adopt(s: Subject, order: Order, kept: bytes, known: Known | None = None, **how: bool) -> Instance:
    return await s.driver.adopt(order, kept, ignore, known or Known(), **{"paused": False, **how})


@pytest.mark.parametrize("leave", [False, True], ids=["killed", "closed"])
async def test_a_successor_adopts_what_runs_and_sweeps_the_rest(subject: Make, leave: bool) -> None:
    async with subject() as s:
        orders = [s.order() for _ in range(3)]
        made = [await s.driver.create(order, ignore) for order in orders]
        await start(made[0], "true").end()
        kept = made[0].keep()
        await s.succeed(leave)
        instance = await adopt(s, orders[0], kept)
        assert instance.keep() == kept
        assert instance.pid == made[0].pid
        await s.driver.sweep()
        assert all(count <= 1 for count in s.taken().values())
        assert (await start(instance, "false").end())["exit_code"] == 1
        other = await s.driver.create(s.order(), ignore)
        assert (await start(other, "true").end())["exit_code"] == 0
        await asyncio.gather(instance.destroy(GONE), other.destroy(GONE))
        assert not any(s.taken().values())


async def test_what_has_ended_meanwhile_is_not_adopted(subject: Make) -> None:
    async with subject() as s:
        ended = asyncio.Event()
        order = s.order()
        instance = await s.driver.create(order, lambda end: ended.set())
        kept = instance.keep()
        s.kill(order.id)
        async with asyncio.timeout(TIMEOUT_S):
            await ended.wait()
        await s.succeed(False)
        with pytest.raises(SandboxFailedError):
            await adopt(s, order, kept)
        await s.driver.sweep()
        assert not any(s.taken().values())


async def test_calls_are_named_with_their_answers_until_these_are_recorded(subject: Make) -> None:
    async with subject() as s:
        order = s.order()
        instance = await s.driver.create(order, ignore)
        recorded = start(instance, "echo", "recorded", tag="recorded")
        await recorded.end()
        acknowledge(recorded.call)
        await start(instance, "true").end()
        await start(instance, "echo", "heard", tag="heard").end()
        start(instance, "sleep", "0.3", tag="running")
        start(instance, "cat", stdin=True, tag="canceled")
        kept = instance.keep()
        await asyncio.sleep(0.1)  # until acknowledgements have been sent
        for _ in range(2):
            await s.succeed(False)
            known = Known()
            instance = await adopt(s, order, kept, known)
            assert {"heard", "canceled"} <= set(known.calls) <= {"heard", "running", "canceled"}
        await s.driver.sweep()
        assert "heard" not in known.running
        assert (await known.calls["heard"].end())["exit_code"] == 0
        assert bytes(known.calls["heard"].output[STDOUT]) == b"heard\n"
        assert (await known.calls["running"].end())["exit_code"] == 0
        known.calls["canceled"].call.cancel()
        assert (await known.calls["canceled"].end())["ended"] == "canceled"
        for listener in known.calls.values():
            assert listener.endings == 1
            acknowledge(listener.call)
        await instance.destroy(GONE)


async def test_paused_and_resumed_again_and_again_nothing_is_lost(subject: Make) -> None:
    async with subject() as s:
        instance = await s.driver.create(s.order(), ignore)
        sleeping = start(instance, "sleep", "0.05")
        for _ in range(5):
            await instance.pause()
            await instance.pause()
            with pytest.raises(DSecError, match="paused"):
                start(instance, "true")
            await instance.resume()
            await instance.resume()
            assert (await start(instance, "true").end())["exit_code"] == 0
        assert (await sleeping.end())["exit_code"] == 0
        await instance.destroy(GONE)


async def test_pause_and_resume_may_race(subject: Make) -> None:
    async with subject() as s:
        instances = [await s.driver.create(s.order(), ignore) for _ in range(2)]
        for _ in range(5):
            await asyncio.gather(*(verb() for i in instances for verb in (i.pause, i.resume, i.pause, i.resume)))
        for instance in instances:
            await instance.resume()
            assert (await start(instance, "true").end())["exit_code"] == 0
        late = [asyncio.ensure_future(verb()) for i in instances for verb in (i.pause, i.resume, i.pause)]
        await asyncio.sleep(0)
        await asyncio.gather(*(instance.destroy(GONE) for instance in instances))
        for outcome in await asyncio.gather(*late, return_exceptions=True):
            assert outcome is None or isinstance(outcome, DSecError)
        assert not any(s.taken().values())


async def test_a_pause_that_nobody_waits_for_is_finished(subject: Make) -> None:
    async with subject() as s:
        instance = await s.driver.create(s.order(), ignore)
        asking = asyncio.ensure_future(instance.pause())
        await asyncio.sleep(0.002)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await instance.resume()
        assert (await start(instance, "true").end())["exit_code"] == 0
        await instance.destroy(GONE)


async def test_a_pause_gives_way_to_the_end(subject: Make) -> None:
    async with subject() as s:
        ends: list[End] = []
        instances = [await s.driver.create(s.order(), ends.append) for _ in range(3)]
        await instances[2].pause()
        asking = [asyncio.ensure_future(instance.pause()) for instance in instances]
        await asyncio.sleep(0)
        for instance in instances:
            instance.hasten()
            instance.hasten()
            with pytest.raises(DSecError):
                await instance.pause()
        for outcome in await asyncio.gather(*asking, return_exceptions=True):
            assert outcome is None or isinstance(outcome, DSecError)
        await asyncio.gather(*(instance.destroy(GONE) for instance in instances))
        assert not any(s.taken().values())
        assert ends == []


async def test_what_stands_still_can_be_ended(subject: Make) -> None:
    async with subject() as s:
        ends: list[End] = []
        first, second = s.order(), s.order()
        one, two = [await s.driver.create(order, ends.append) for order in (first, second)]
        sleeping = start(one, "sleep", "1000")
        await one.pause()
        await two.pause()
        await one.destroy(GONE)
        with pytest.raises(SandboxFailedError):
            await sleeping.end()
        assert ends == []
        s.kill(second.id)
        with pytest.raises(SandboxFailedError):
            await two.resume()
        assert [end.cause for end in ends] == ["init_killed"]
        await two.destroy(GONE)
        assert not any(s.taken().values())


async def test_what_stands_still_is_adopted_so(subject: Make) -> None:
    async with subject() as s:
        orders = [s.order() for _ in range(3)]
        made = [await s.driver.create(order, ignore) for order in orders]
        await start(made[0], "echo", "heard", tag="heard").end()
        for each in made:
            await each.pause()
        known = Known()
        await s.succeed(False)
        instance = await adopt(s, orders[0], made[0].keep(), known, paused=True)
        second = await adopt(s, orders[1], made[1].keep(), paused=True)
        unrecorded = await adopt(s, orders[2], made[2].keep())
        await s.driver.sweep()
        assert not known.calls
        assert (await start(unrecorded, "true").end())["exit_code"] == 0
        await asyncio.gather(second.destroy(GONE), unrecorded.destroy(GONE))
        await instance.resume()
        assert set(known.calls) == {"heard"}
        await known.calls["heard"].end()
        assert (await start(instance, "true").end())["exit_code"] == 0
        await instance.destroy(GONE)
        assert not any(s.taken().values())


async def test_what_stands_still_and_is_not_adopted_is_swept(subject: Make) -> None:
    async with subject() as s:
        instance = await s.driver.create(s.order(), ignore)
        await instance.pause()
        await s.succeed(False)
        await s.driver.sweep()
        assert not any(s.taken().values())
