"""Errors of a Dockerfile: each names the line."""

from __future__ import annotations

from libdsec.protocol.errors import DSecError, InvalidArgumentError


def refusal(line: int, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"cannot build line {line} of the Dockerfile: {why}", field="dockerfile", line=line)


def at_line(error: DSecError, line: int) -> DSecError:
    """The same error, with the line it came of."""
    if "line" in error.details:
        return error
    return type(error)(f"{error.message} (line {line} of the Dockerfile)", **{**error.details, "line": line})


class StepFailedError(DSecError):
    """A RUN that ended with anything but 0. Client's own, never on the wire. `details`: line, how (`exited`,
    `signaled`, ...)."""

    code, exit_code = "step_failed", 1

    def __init__(self, message: str, status: int, line: int, how: str) -> None:
        super().__init__(message, line=line, how=how, status=status)
        self.status = status
        """As a shell would say it: 1 to 255."""
