"""Random programs against a dictionary: begins, ends, joins, withdrawals, unknown outcomes, full disks, reopenings."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from steps_said import SANDBOX, Logbook, begun, end, withdraw

from dsec.commandlog import SCHEMA, Begun, CommandLog, Joined, OpenStep, Recorded, RecordedStep
from dsec.journal import Journal
from dsec.testing.fake_clock import FakeClock
from libdsec.protocol.errors import (
    CapacityError,
    InvalidArgumentError,
    OutcomeUnknownError,
    ReplayDivergedError,
    UnavailableError,
)

TRACKS = st.sampled_from(["main", "main/1", "key:k"])
COMMANDS = st.sampled_from(["true", "false"])
SIZES = st.sampled_from([0, 1, 5_000, 17_000])
OPEN = st.integers(0, 10**6)


@dataclass
class Known:
    """One number of one track."""

    command: str
    state: str
    output: bytes = b""
    tried: int = 0
    entry: OpenStep | None = None
    joined: list[asyncio.Future[object]] = field(default_factory=list)


class Program(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = uvloop.new_event_loop()
        self.homes = [tempfile.TemporaryDirectory(prefix="dsec-log-model-")]
        self.clock = FakeClock()
        self.known: dict[tuple[str, int], Known] = {}
        self.keys: set[str] = set()
        self.outputs = itertools.count()
        self.loop.run_until_complete(self.open())

    def teardown(self) -> None:
        self.loop.run_until_complete(self.journal.close())
        self.loop.close()
        for home in self.homes:
            home.cleanup()

    def last(self, track: str) -> int:
        return max((n for at, n in self.known if at == track), default=0)

    @rule(track=TRACKS, back=st.integers(-2, 3), command=COMMANDS, again=st.booleans(), full=st.booleans())
    def say(self, track: str, back: int, command: str, again: bool, full: bool) -> None:
        n = max(1, self.last(track) + 1 - back)
        self.loop.run_until_complete(self._say(track, n, command, again, full and back == 0))

    async def _say(self, track: str, n: int, command: str, again: bool, full: bool) -> None:
        known = self.known.get((track, n))
        try:
            said = self.book.say(n, command + "x" * 30_000 * full, track=track, again=again)
        except InvalidArgumentError:
            assert n > self.last(track) + 1
            return
        except ReplayDivergedError:
            assert known is not None
            assert known.command != command
            return
        except OutcomeUnknownError:
            assert known is not None
            assert (known.command, known.state, again) == (command, "unknown", False)
            return
        if isinstance(said, Recorded):
            assert known is not None
            assert (known.command, known.state) == (command, "result")
            assert await self._output(said.step) == known.output
        elif isinstance(said, Joined):
            assert known is not None
            assert (known.command, known.state) == (command, "running")
            assert said.entry is known.entry or known.entry is None
            told: asyncio.Future[object] = self.loop.create_future()
            said.entry.join(told.set_result)
            known.joined.append(told)
        else:
            await self._began(said, track, n, command, known, full)

    async def _began(self, said: Begun, track: str, n: int, command: str, known: Known | None, full: bool) -> None:
        assert said.entry.key not in self.keys
        self.keys.add(said.entry.key)
        if known is None and full:
            ((size,),) = self.journal.query("PRAGMA page_count")
            waiting, self.journal._waiting = self.journal._waiting, None
            self.journal.look(f"PRAGMA max_page_count = {size}")
            try:
                await begun(said.entry)
            except CapacityError:
                return
            finally:
                self.journal.look("PRAGMA max_page_count = 1000000")
                self.journal._waiting = waiting
        await begun(said.entry)
        if known is None:
            self.known[track, n] = Known(command + "x" * 30_000 * full, "running", entry=said.entry)
        else:
            assert (known.command, known.state) == (command, "unknown")
            known.state, known.tried, known.entry = "running", known.tried + 1, said.entry

    def running(self) -> list[tuple[tuple[str, int], Known]]:
        return [(at, known) for at, known in self.known.items() if known.state == "running"]

    def pick(self, choice: int) -> tuple[tuple[str, int], Known, OpenStep]:
        running = self.running()
        (track, n), known = running[choice % len(running)]
        entry = known.entry or next(step for step in self.book.log.running() if (step.track, step.n) == (track, n))
        return (track, n), known, entry

    @precondition(lambda self: self.running())
    @rule(choice=OPEN, size=SIZES, state=st.sampled_from(["result", "result", "unknown"]))
    def ends(self, choice: int, size: int, state: str) -> None:
        async def run() -> None:
            _, known, entry = self.pick(choice)
            output = b"%d" % next(self.outputs) + bytes(size)
            await end(entry, output, state=state, answer=b"" if state == "unknown" else b"\x80")
            known.state, known.output, known.entry = state, output, None
            for told in await asyncio.gather(*known.joined):
                if state == "unknown":
                    assert isinstance(told, OutcomeUnknownError)
                else:
                    assert isinstance(told, RecordedStep)
                    assert await self._output(told) == output
            known.joined.clear()

        self.loop.run_until_complete(run())

    @precondition(lambda self: self.running())
    @rule(choice=OPEN)
    def withdraws(self, choice: int) -> None:
        async def run() -> None:
            at, known, entry = self.pick(choice)
            await withdraw(entry)
            told = await asyncio.gather(*known.joined)
            assert all(isinstance(one, UnavailableError) for one in told)
            known.joined.clear()
            known.entry = None
            if known.tried:
                known.state, known.tried = "unknown", known.tried - 1
            else:
                del self.known[at]

        self.loop.run_until_complete(run())

    @rule(clean=st.booleans())
    def reopens(self, clean: bool) -> None:
        """A crash: the files are taken as they are, by a copy that is opened instead."""

        async def run() -> None:
            keys = {step.key for step in self.book.log.running()}
            for _, known in self.running():
                known.joined.clear()
                known.entry = None
            if clean:
                await self.journal.close()
                await self.open()
            else:
                await self.crash()
                await old.close()
            assert {step.key for step in self.book.log.running()} == keys
            for key in keys:
                found = self.book.log.by_key(key, SANDBOX)
                assert found is not None
                assert found.key == key

        old = self.journal
        self.loop.run_until_complete(run())

    async def crash(self) -> None:
        copy = tempfile.TemporaryDirectory(prefix="dsec-log-model-")
        for name in ("edge.db", "edge.db-wal", "edge.db-ahead"):
            shutil.copy(Path(self.homes[-1].name) / name, Path(copy.name) / name)
        shutil.copytree(Path(self.homes[-1].name) / "logs", Path(copy.name) / "logs")
        self.homes.append(copy)
        await self.open()

    async def open(self) -> None:
        path = Path(self.homes[-1].name)
        self.journal = Journal(str(path / "edge.db"), self.loop, (SCHEMA,))
        self.book = Logbook(CommandLog(self.journal, str(path / "logs"), self.clock), self.clock)

    async def _output(self, step: RecordedStep) -> bytes:
        if step.stdout is not None:
            return step.stdout
        return await self.book.log.read_blob(step.scope_id, step.blob_at, step.stdout_size)

    @invariant()
    def rows_are_those_of_the_dictionary(self) -> None:
        rows = self.journal.query("SELECT track, n, state FROM log_steps")
        states = ("running", "result", "error", "unknown")
        assert {(track, n): states[state] for track, n, state in rows} == {
            at: known.state for at, known in self.known.items()
        }


Program.TestCase.settings = settings(max_examples=10, stateful_step_count=30, deadline=None)
TestProgram = Program.TestCase
