"""A program drawn by a seed: what it does, what it must get, and what it was told.

Every command and append adds a token of its own to the sandbox's counter file. The same seed makes the same calls with
the same arguments, whatever they answer: so it may be run again from the top.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from libdsec import DSecClient, DSecContainerRunArgs, ExecResult
from libdsec.errors import DSecError, LeaseLostError
from libdsec.rollout import Rollout
from libdsec.sandbox import Sandbox

TRIES = 200
"""Of a call that surely did not run."""

COUNTER = "/count"
LARGE = 100_000

Outcome = tuple[Any, ...]
OnStep = Callable[[str], None]


class Notes:
    """What the program was told, over all its runs: kept outside of it, so that its death does not lose it."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, Outcome] = {}
        self.begun: dict[str, int] = {}
        """How often each step was begun."""
        self.tokens: dict[str, set[str]] = {}
        """Of each sandbox: what may stand in its counter file."""
        self.sandboxes: dict[str, str] = {}
        """The ids, by the names of their creates."""
        self.fed: set[str] = set()
        """Steps with input that cannot be said again from its beginning once some of it was handed over."""
        self.retried: list[tuple[str, str]] = []
        """Steps and the errors after which they were asked for again."""
        self.wrong: list[str] = []

    def acknowledge(self, name: str, outcome: Outcome) -> None:
        earlier = self.acknowledged.setdefault(name, outcome)
        if _essence(earlier) != _essence(outcome):
            self.wrong.append(f"{name} was {earlier} and is now {outcome}")


class Kind(NamedTuple):
    """What of a program its victim says."""

    seed: int
    full: bool
    """It does at least one of everything."""
    alone: bool
    """It may have a sandbox that is not of its rollout. Should the create of such a one fail, that is no step."""
    create_timeout: float


class Program:
    """One run of it."""

    def __init__(self, client: DSecClient, rollout: Rollout, kind: Kind, notes: Notes, on_step: OnStep) -> None:
        """`on_step` is told of each step before it is asked for."""
        self._client = client
        self._rollout = rollout
        self._kind = kind
        self._random = Random(f"program {kind.seed}")
        self._notes = notes
        self._on_step = on_step

    async def run(self, *, stop: bool) -> None:
        """All of it; `stop`: and then end its sandboxes."""
        count = 2 if self._kind.full else self._random.choice((1, 1, 2))
        plans = [self._draw_plan() for _ in range(count)]
        together = self._random.random() < 0.5
        alone = self._kind.alone and (self._kind.full or self._random.random() < 0.3)
        made = [(plan, await self._create(f"s{number}", alone and number == 0)) for number, plan in enumerate(plans)]
        plays = [self._play(f"s{number}", sandbox, plan) for number, (plan, sandbox) in enumerate(made) if sandbox]
        await _all(plays, together)
        if stop:
            stops = [self._stop(f"s{number}.stop", sandbox) for number, (_, sandbox) in enumerate(made) if sandbox]
            await _all(stops, together)

    def _draw_plan(self) -> list[Callable[[str, Sandbox], Awaitable[None]]]:
        kinds = [self._exec, self._append, self._rewrite, self._session, self._large, self._pause, self._together]
        kinds.append(self._pack)
        weights = (6, 2, 2, 2, 1, 3, 3, 1)
        # one that makes the counter file comes first
        drawn = [self._exec, *self._random.choices(kinds, weights, k=self._random.randint(4, 8))]
        if self._kind.full:
            drawn += kinds
            self._random.shuffle(drawn)
        return drawn

    async def _play(self, name: str, sandbox: Sandbox, plan: list[Callable[[str, Sandbox], Awaitable[None]]]) -> None:
        for number, part in enumerate(plan):
            await part(f"{name}.{number}", sandbox)
        await self._step(f"{name}.count", lambda: sandbox.files.read(COUNTER))

    async def _create(self, name: str, alone: bool) -> Sandbox | None:
        """`alone`: with a log of its own, found again by its key."""
        args = DSecContainerRunArgs(container_image="tiny:1", memory_limit_mb=256, labels={"name": name})
        made: list[Sandbox] = []

        async def create() -> str:
            if alone:
                key = f"{self._rollout.id}-alone"
                made.append(await self._client.run_container(args, timeout=self._kind.create_timeout, key=key))
            else:
                made.append(await self._rollout.run_container(args, timeout=self._kind.create_timeout))
            self._notes.sandboxes[name] = made[-1].id
            return made[-1].id

        await self._step(f"{name}.create", create)
        return made[-1] if made else None

    async def _stop(self, name: str, sandbox: Sandbox) -> None:
        # what has failed stays so; whether it may have failed is looked at elsewhere
        await self._step(name, sandbox.stop, lambda info: info.state in ("stopped", "failed"))

    async def _exec(self, name: str, sandbox: Sandbox) -> None:
        code, name = len(name) % 3, self._token(name)
        await self._step(
            name,
            lambda: sandbox.run_shell(f"echo {name} >> {COUNTER}; echo {name}; exit {code}"),
            lambda result: (result.exit_code, result.stdout) == (code, f"{name}\n"),
        )

    async def _append(self, name: str, sandbox: Sandbox) -> None:
        token = f"{self._token(name)}\n"
        self._notes.fed.add(name)
        await self._step(name, lambda: sandbox.files.append(COUNTER, token), lambda size: size == len(token))

    async def _rewrite(self, name: str, sandbox: Sandbox) -> None:
        size = LARGE * 3 if crc32(name.encode()) % 4 == 0 else 4000  # more than a window, now and then
        content = (name.encode() * size)[:size]
        await self._step(f"{name}.write", lambda: sandbox.files.write("/file", content), lambda n: n == len(content))
        await self._step(f"{name}.read", lambda: sandbox.files.read("/file"), lambda found: found == content)

    async def _session(self, name: str, sandbox: Sandbox) -> None:
        session = sandbox.session()
        if not await self._step(f"{name}.open", lambda: _opened(session.open())):
            return
        for number in range(2):
            token = self._token(f"{name}.{number}")
            command = f"n=$((n + 1)); echo {token} >> {COUNTER}; echo {token} $n"
            await self._step(
                token,
                lambda command=command: session.run(command),
                lambda result, token=token, number=number: result.stdout == f"{token} {number + 1}\n",
            )
        await self._step(f"{name}.close", session.close)

    async def _large(self, name: str, sandbox: Sandbox) -> None:
        line = f"{name} is printed again and again\n"
        printed = (line * (LARGE // len(line) + 1)).encode()[:LARGE]
        command = f"echo {self._token(name)} >> {COUNTER}; yes '{line.strip()}' | head -c {LARGE}"
        await self._step(name, lambda: sandbox.run_shell(command), lambda result: result.stdout_bytes == printed)

    async def _pause(self, name: str, sandbox: Sandbox) -> None:
        await self._step(f"{name}.pause", sandbox.pause, lambda info: info.state == "paused")
        if len(name) % 2:
            await self._step(f"{name}.resume", sandbox.resume, lambda info: info.state == "running")

    async def _pack(self, name: str, sandbox: Sandbox) -> None:
        """The image stays: it is the step's, whoever says that again."""
        ref = f"{self._rollout.id}-{name}:1".lower()
        await self._step(name, lambda: sandbox.pack_diff(ref), lambda packed: packed.image.ref == ref)

    async def _together(self, name: str, sandbox: Sandbox) -> None:
        """At once, each on a track of its own; a pause among them."""
        tracks = [sandbox.track(f"{name}-{number}") for number in range(3)]
        calls = [self._exec(f"{name}.{number}", track) for number, track in enumerate(tracks)]
        await _all([*calls, self._pause_between(name, sandbox.track(f"{name}-pause"))], True)

    async def _pause_between(self, name: str, sandbox: Sandbox) -> None:
        """What was asked for before it stands still until somebody resumes it."""
        await self._step(f"{name}.pause", sandbox.pause)
        await self._step(f"{name}.resume", sandbox.resume)

    def _token(self, name: str) -> str:
        self._notes.tokens.setdefault(name.partition(".")[0], set()).add(name)
        return name

    async def _step(
        self, name: str, call: Callable[[], Awaitable[Any]], right: Callable[[Any], bool] = lambda value: True
    ) -> bool:
        """Ask until there is an outcome that stays. Whether it is a result."""
        for _ in range(TRIES):
            self._notes.begun[name] = self._notes.begun.get(name, 0) + 1
            self._on_step(name)
            try:
                value = await call()
            except LeaseLostError:
                raise  # somebody else is this program now
            except DSecError as error:
                if error.retry == "never":
                    self._notes.acknowledge(name, ("error", error.code, error.message))
                    return False
                self._notes.retried.append((name, error.code))
                await asyncio.sleep(0.02)
            else:
                if not right(value):
                    self._notes.wrong.append(f"{name} gave {value!r:.500}")
                self._notes.acknowledge(name, ("result", _plain(value)))
                return True
        self._notes.wrong.append(f"{name} surely did not run, {TRIES} times")
        return False


async def _all(works: list[Coroutine[Any, Any, None]], together: bool) -> None:
    if not together:
        try:
            for work in works:
                await work
        finally:
            for work in works:
                work.close()  # those that were not come to
        return
    # one that fails ends no other: a program that lost its lease comes to that at each of its next calls
    for ended in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended


async def _opened(opening: Awaitable[Any]) -> None:
    await opening


def _plain(value: Any) -> Any:
    """What can be compared: all but whether it was replayed."""
    if isinstance(value, ExecResult):
        value = msgspec.structs.replace(value, replayed=False)
    return msgspec.to_builtins(value, builtin_types=(bytes,)) if isinstance(value, msgspec.Struct) else value


def _essence(outcome: Outcome) -> Outcome:
    """Of two unknown outcomes only that they are unknown: who tells it says it in words of his own."""
    return outcome[:2] if outcome[:2] == ("error", "outcome_unknown") else outcome
