"""Agents: who does a task. The contract, and those that ship.

- `oracle`        answers with the reference solution: an environment whose oracle does not pass is broken
- `broken`        answers with a function that runs and is wrong: an environment that lets it pass is broken
- `command:PATH`  asks a program on this machine: the prompt on its stdin, the answer from its stdout
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from typing import Protocol

from dsec.environments import Task
from libdsec import Sandbox
from libdsec.protocol.errors import InvalidArgumentError

ANSWER_LIMIT = 1024 * 1024
"""Bytes of an answer."""


class AgentFailedError(Exception):
    """The agent could not give an answer; nothing is said about the task or the platform."""

    code = "agent_failed"


class Agent(Protocol):
    """Acts on a task, in the task's own sandbox if it wants, and gives the answer."""

    name: str

    async def act(self, task: Task, sandbox: Sandbox) -> str:
        """Called once a rollout, many at the same time; may be cancelled anywhere and then leaves nothing running.

        :raises AgentFailedError: no answer.
        :raises DSecError: of the sandbox's calls.
        """
        ...


class Oracle:
    name = "oracle"

    async def act(self, task: Task, sandbox: Sandbox) -> str:
        return task.solution


# equal to nothing but itself, and no number, string or sequence, so that no check can take it for an answer
_WRONG = """    class Wrong:
        pass

    return Wrong()
"""


class Broken:
    name = "broken"

    async def act(self, task: Task, sandbox: Sandbox) -> str:
        return _WRONG


class Command:
    """A program of the user's: it runs here, with the user's rights, not in the sandbox.

    Its environment has DSEC_TASK and DSEC_SANDBOX, so that it can also act in the sandbox (`dsec exec`).
    """

    def __init__(self, path: str) -> None:
        found = shutil.which(path)
        if found is None:
            raise InvalidArgumentError(
                f"cannot use agent command:{path}: no executable file of this name", field="agent"
            )
        self.name = f"command:{path}"
        self._program = os.path.abspath(found)

    async def act(self, task: Task, sandbox: Sandbox) -> str:
        process = await asyncio.create_subprocess_exec(
            self._program,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "DSEC_TASK": task.id, "DSEC_SANDBOX": sandbox.id},
            start_new_session=True,
        )
        try:
            answer = await _ask(process, task.prompt.encode())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        try:
            return answer.decode()
        except UnicodeDecodeError:
            raise AgentFailedError(f"cannot use the answer of {self.name}: it is not UTF-8") from None


async def _ask(process: asyncio.subprocess.Process, prompt: bytes) -> bytes:
    """What it prints, at most ANSWER_LIMIT, once it has ended with 0."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(prompt)
    process.stdin.close()
    answer = bytearray()
    while chunk := await process.stdout.read(65536):
        answer += chunk
        if len(answer) > ANSWER_LIMIT:
            raise AgentFailedError(f"cannot use the answer: it is larger than {ANSWER_LIMIT} bytes")
    # a program that did not want the whole prompt may still have answered
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        await process.stdin.wait_closed()
    code = await process.wait()
    if code != 0:
        raise AgentFailedError(f"cannot use the answer: the program ended with {code}")
    return bytes(answer)


def make_agent(name: str) -> Agent:
    """:raises InvalidArgumentError: no agent of this name."""
    kind, colon, argument = name.partition(":")
    if kind == "command" and argument:
        return Command(argument)
    plain: dict[str, type[Oracle] | type[Broken]] = {"oracle": Oracle, "broken": Broken}
    if colon or kind not in plain:
        raise InvalidArgumentError(
            f"cannot use agent {name!r}: it must be oracle, broken or command:PATH", field="agent"
        )
    return plain[kind]()
