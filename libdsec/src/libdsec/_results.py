"""The SDK's `ExecResult` out of the wire's `ExecAnswer`."""

from __future__ import annotations

from ._transport.exchange import Answer
from .protocol.exec import ExecAnswer, ExecResult


def collected_result(answer: Answer) -> ExecResult:
    """Of a command whose output was collected."""
    value: ExecAnswer = answer.value
    return _result(
        value, answer.stdout, answer.stderr, value.stdout.total, value.stderr.total, replayed=answer.replayed
    )


def streamed_result(answer: ExecAnswer) -> ExecResult:
    """Of a command whose output went to its streams: the result holds none, and counts none as left out."""
    return _result(answer, b"", b"", 0, 0, replayed=False)


def _result(
    answer: ExecAnswer, stdout: bytes, stderr: bytes, stdout_total: int, stderr_total: int, replayed: bool
) -> ExecResult:
    return ExecResult(
        ended=answer.ended,
        exit_code=answer.exit_code,
        signal=answer.signal,
        stdout_bytes=stdout,
        stderr_bytes=stderr,
        stdout_total=stdout_total,
        stderr_total=stderr_total,
        duration_s=answer.duration_us / 1e6,
        oom_kills=answer.oom_kills,
        pids_refused=answer.pids_refused,
        untrusted=answer.untrusted,
        session_ended=answer.session_ended,
        replayed=replayed,
    )
