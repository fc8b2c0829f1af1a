"""Commands, sessions, and what they end as.

How a command ended is one of four different answers, never mixed up: it exited, a signal ended it, its timeout ended
it, or it never started (`CommandNotStartedError`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .errors import CommandFailedError


class OutputLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes kept of one output stream: the first `head` and the last `tail`; what lies between is only counted. Both go
    over the wire in any case, down to PID 1."""

    head: int = 512 * 1024
    tail: int = 512 * 1024


class ExecRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One command, started by one fork of PID 1.

    `env` is merged over the sandbox's own; `cwd` and `user` default to the sandbox's.
    """

    sandbox: str
    argv: tuple[str, ...]
    env: dict[str, str] = {}
    cwd: str | None = None
    user: str | None = None
    timeout_s: float | None = None
    stdin: bool = False
    """True: the caller sends DATA on stream 1, ended by END. False: /dev/null."""
    stream: bool = False
    """True: output comes as it is printed, under credit; the command waits for a slow reader.
    False: collected and cut."""
    limit: OutputLimit = OutputLimit()
    pty: bool = False
    """A terminal on stdin, stdout and stderr (all on stream 2); implies `stdin` and `stream`."""
    rows: int = 24
    cols: int = 80


Ended = Literal["exited", "signaled", "timed_out", "canceled"]


class OutputInfo(msgspec.Struct, frozen=True):
    """How much one stream printed. `head` + `tail` bytes were kept; the middle is cut when `total` is more."""

    total: int = 0
    head: int = 0
    tail: int = 0


class ExecAnswer(msgspec.Struct, frozen=True):
    """The RESULT of exec and session.run on the wire; the kept output precedes it as DATA on streams 2 and 3."""

    ended: Ended
    exit_code: int | None = None
    signal: int | None = None
    duration_us: int = 0
    stdout: OutputInfo = OutputInfo()
    stderr: OutputInfo = OutputInfo()
    oom_kills: int = 0
    """Processes of this command that the kernel killed for memory; the command itself may still have exited."""
    pids_refused: int = 0
    """Forks refused because the sandbox's pids limit was reached while the command ran."""
    untrusted: bool = False
    """True: the exit code comes from a shell of the sandbox's own (a session) and could be forged by it."""
    session_ended: bool = False


class ExecResult(msgspec.Struct, frozen=True):
    """A command that ran, as the SDK gives it."""

    ended: Ended
    exit_code: int | None
    """None unless `ended` is `exited`."""
    signal: int | None
    stdout_bytes: bytes
    stderr_bytes: bytes
    stdout_total: int
    stderr_total: int
    duration_s: float
    oom_kills: int = 0
    pids_refused: int = 0
    untrusted: bool = False
    session_ended: bool = False
    replayed: bool = False
    """True: it ran before and is told from the command log; nothing ran now."""

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def truncated(self) -> bool:
        """Whether anything printed was left out; `stdout_total` and `stderr_total` say how much there was."""
        return self.stdout_total > len(self.stdout_bytes) or self.stderr_total > len(self.stderr_bytes)

    @property
    def timed_out(self) -> bool:
        return self.ended == "timed_out"

    @property
    def out_of_memory(self) -> bool:
        return self.oom_kills > 0

    @property
    def ok(self) -> bool:
        return self.ended == "exited" and self.exit_code == 0

    def how(self) -> str:
        """In words, for messages: "exit code 1", "signal 9 (out of memory)", "timeout"."""
        memory = " (out of memory)" if self.oom_kills else ""
        if self.ended == "exited":
            return f"exit code {self.exit_code}{memory}"
        if self.ended == "signaled":
            return f"signal {self.signal}{memory}"
        return "timeout" if self.ended == "timed_out" else "canceled"

    def check(self) -> ExecResult:
        """Itself.

        :raises CommandFailedError: it did not end with exit code 0.
        """
        if not self.ok:
            tail = self.stderr_bytes[-2000:].decode("utf-8", "replace").strip()
            raise CommandFailedError(f"the command ended with {self.how()}" + (f": {tail}" if tail else ""))
        return self


class ResizeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """EVENT on an exec call with a PTY."""

    rows: int
    cols: int


class SignalRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """EVENT on an exec call: send `signal` to the command's process group, or to its whole tree."""

    signal: int
    tree: bool = False


class SessionOpenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    sandbox: str
    shell: tuple[str, ...] = ("/bin/sh",)
    env: dict[str, str] = {}
    cwd: str | None = None
    user: str | None = None


class SessionInfo(msgspec.Struct, frozen=True):
    session: int
    pid: int


class SessionRunRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One command line in a session; its working directory, variables and jobs stay for the next."""

    sandbox: str
    session: int
    command: str
    timeout_s: float | None = None
    limit: OutputLimit = OutputLimit()


class SessionCloseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    sandbox: str
    session: int
