"""What every driver promises (dsec.drivers.base), the fake included."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
from driver_calls import GONE, TIMEOUT_S, Listener, ignore, start
from driver_subjects import Make

from dsec.drivers.base import End
from libdsec.protocol.errors import (
    DeadlineExceededError,
    DSecError,
    InvalidArgumentError,
    SandboxFailedError,
    UnavailableError,
    UnsupportedOperationError,
)
from libdsec.protocol.frames import END, STDOUT, WINDOW
from libdsec.protocol.spec import SandboxSpec


async def test_create_run_destroy(subject: Make) -> None:
    async with subject() as s:
        instance = await s.driver.create(s.order(), ignore)
        assert instance.pid > 0
        run = start(instance, "echo", "hello")
        answer = await run.end()
        assert (answer["ended"], answer["exit_code"]) == ("exited", 0)
        assert bytes(run.output[STDOUT]) == b"hello\n"
        assert answer["stdout"] == {"total": 6, "head": 6, "tail": 0}
        assert (await start(instance, "false").end())["exit_code"] == 1
        assert set(instance.usage()) <= {"memory_bytes", "pids"}
        await instance.destroy(GONE)
        await instance.destroy(GONE)
        assert not any(s.taken().values())


async def test_what_does_not_start_is_an_error_with_its_stage(subject: Make) -> None:
    async with subject() as s:
        instance = await s.driver.create(s.order(), ignore)
        for changes, stage, kind in (
            ({"argv": ["/bin/nonsense"]}, "exec", "not_found"),
            ({"argv": ["true"], "cwd": "/nowhere"}, "cwd", "no_such_directory"),
            ({"argv": ["true"], "user": "nobody-here"}, "user", "no_such_user"),
        ):
            with pytest.raises(DSecError) as caught:
                await start(instance, **changes).end()
            assert caught.value.code == "command_not_started"
            assert (caught.value.details["stage"], caught.value.details["kind"]) == (stage, kind)
        await instance.destroy(GONE)


async def test_input_is_granted_as_it_is_consumed(subject: Make) -> None:
    async with subject() as s:
        instance = await s.driver.create(s.order(), ignore)
        cat = start(instance, "cat", stdin=True, stream=True)
        part = b"x" * 65_536
        for number in range(16):
            sent = number * len(part)
            await cat.until(lambda sent=sent: sent - cat.granted + len(part) <= WINDOW)
            cat.call.data(1, part, END if number == 15 else 0)
        answer = await cat.end()
        assert answer["exit_code"] == 0
        assert len(cat.output[STDOUT]) == 16 * len(part)
        await instance.destroy(GONE)


async def test_a_reader_without_credit_stops_the_command_and_no_other(subject: Make) -> None:
    async with subject() as s:
        instance = await s.driver.create(s.order(), ignore)
        flood = start(instance, "yes", stream=True, listener=Listener(greedy=False))
        await flood.until(lambda: len(flood.output[STDOUT]) > WINDOW - 65_536)
        assert (await start(instance, "true").end())["exit_code"] == 0
        assert len(flood.output[STDOUT]) <= WINDOW
        flood.call.cancel()
        assert (await flood.end())["ended"] == "canceled"
        await instance.destroy(GONE)


async def test_timeout_is_a_result(subject: Make) -> None:
    async with subject() as s:
        instance = await s.driver.create(s.order(), ignore)
        answer = await start(instance, "sleep", "1000", timeout_ms=50).end()
        assert (answer["ended"], answer["exit_code"]) == ("timed_out", None)
        await instance.destroy(GONE)


async def test_abandoned_streams_end_and_collected_commands_go_on(subject: Make) -> None:
    async with subject() as s:
        instance = await s.driver.create(s.order(), ignore)
        flood = start(instance, "yes", stream=True)
        quick = start(instance, "sleep", "0.05")
        flood.call.abandon()
        quick.call.abandon()
        assert (await flood.end())["ended"] == "canceled"
        assert (await quick.end())["exit_code"] == 0
        await instance.destroy(GONE)


async def test_many_calls_at_once(subject: Make) -> None:
    async with subject() as s:
        instance = await s.driver.create(s.order(), ignore)
        runs = [start(instance, "echo", str(number)) for number in range(40)]
        for number, run in enumerate(runs):
            await run.end()
            assert bytes(run.output[STDOUT]) == f"{number}\n".encode()
            assert run.endings == 1
        await instance.destroy(GONE)


async def test_destroy_ends_open_calls_with_its_error(subject: Make) -> None:
    async with subject() as s:
        instance = await s.driver.create(s.order(), ignore)
        running = start(instance, "sleep", "1000")
        await start(instance, "true").end()
        await asyncio.gather(*(instance.destroy(GONE) for _ in range(3)))
        with pytest.raises(SandboxFailedError, match="the test is over"):
            await running.end()
        with pytest.raises(SandboxFailedError):
            start(instance, "true")
        assert not any(s.taken().values())


async def test_an_end_of_its_own_is_told_once(subject: Make) -> None:
    async with subject() as s:
        order = s.order()
        ends: list[End] = []
        told = asyncio.Event()

        def on_end(end: End) -> None:
            ends.append(end)
            told.set()

        instance = await s.driver.create(order, on_end)
        running = start(instance, "sleep", "1000")
        await start(instance, "true").end()
        s.kill(order.id)
        async with asyncio.timeout(TIMEOUT_S):
            await told.wait()
        with pytest.raises(SandboxFailedError):
            await running.end()
        assert [end.cause for end in ends] == ["init_killed"]
        await instance.destroy(GONE)
        assert len(ends) == 1
        assert not any(s.taken().values())


async def test_arguments_beyond_a_frame_are_refused(subject: Make) -> None:
    async with subject() as s:
        instance = await s.driver.create(s.order(), ignore)
        with pytest.raises(InvalidArgumentError):
            start(instance, "echo", "x" * 300_000)
        assert (await start(instance, "true").end())["exit_code"] == 0
        await instance.destroy(GONE)


async def test_what_cannot_be_honoured_is_refused(subject: Make) -> None:
    async with subject() as s:
        s.driver.check(SandboxSpec("tiny:1", network_rules={"pypi": False}))
        with pytest.raises(UnsupportedOperationError):
            s.driver.check(SandboxSpec("tiny:1", network_rules={"pypi": True}))


async def test_a_create_that_is_given_up_leaves_nothing(subject: Make) -> None:
    async with subject() as s:
        for delay in (0.0, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.008):
            creating = asyncio.ensure_future(s.driver.create(s.order(), ignore))
            await asyncio.sleep(delay)
            creating.cancel()
            try:
                instance = await creating
            except asyncio.CancelledError:
                assert not any(s.taken().values())
            else:
                await instance.destroy(GONE)
        with pytest.raises(DeadlineExceededError):
            await s.driver.create(s.order(timeout_s=1e-6), ignore)
        assert not any(s.taken().values())


async def test_what_it_has_written_can_be_read_while_it_stands(subject: Make) -> None:
    async with subject() as s:
        instance = await s.driver.create(s.order(), ignore)
        running = start(instance, "sleep", "0.2", timeout_ms=60_000)
        for _ in range(2):
            async with instance.capture() as captured:
                assert await asyncio.to_thread(os.path.isdir, captured.path)
                captured.check()
                assert captured.since is None or captured.since <= time.monotonic()
            captured.check()
            assert (await start(instance, "true").end())["exit_code"] == 0
        assert (await running.end())["exit_code"] == 0
        await instance.destroy(GONE)
        assert not any(s.taken().values())


async def test_one_that_is_paused_is_captured_and_stays_so(subject: Make) -> None:
    async with subject() as s:
        instance = await s.driver.create(s.order(), ignore)
        await instance.pause()
        async with instance.capture() as captured:
            captured.check()
        with pytest.raises(UnavailableError):
            start(instance, "true")
        await instance.resume()
        assert (await start(instance, "true").end())["exit_code"] == 0
        await instance.destroy(GONE)


async def test_it_goes_on_whatever_happens_in_a_capture(subject: Make) -> None:
    async with subject() as s:
        instance = await s.driver.create(s.order(), ignore)
        with pytest.raises(KeyError):
            async with instance.capture():
                raise KeyError
        reached = asyncio.Event()

        async def hold() -> None:
            async with instance.capture():
                reached.set()
                await asyncio.Event().wait()

        for wait in (True, False):
            holding = asyncio.ensure_future(hold())
            if wait:
                await reached.wait()
            else:
                await asyncio.sleep(0)
            holding.cancel()
            await asyncio.wait([holding])
            assert holding.cancelled()
            assert (await start(instance, "true").end())["exit_code"] == 0
        await instance.destroy(GONE)
        assert not any(s.taken().values())


async def test_one_that_is_ended_meanwhile_says_so(subject: Make) -> None:
    async with subject() as s:
        instance = await s.driver.create(s.order(), ignore)
        async with instance.capture() as captured:
            instance.hasten()
            with pytest.raises(SandboxFailedError):
                captured.check()
            await instance.destroy(GONE)
        with pytest.raises(SandboxFailedError):
            async with instance.capture():
                pass
        assert not any(s.taken().values())
