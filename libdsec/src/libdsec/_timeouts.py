"""How long the answer of a command is waited for."""

from __future__ import annotations

from .protocol.errors import InvalidArgumentError

ANSWER_GRACE_S = 30.0
"""How much longer than a command's own timeout its answer is waited for: the node kills it and collects its output."""


def checked_timeout(timeout: float | None) -> float | None:
    """The timeout itself.

    :raises InvalidArgumentError: not above 0 (or not a number: that would never be over, or always).
    """
    if timeout is not None and not timeout > 0:
        raise InvalidArgumentError(f"cannot use timeout {timeout!r}: it must be above 0", field="timeout")
    return timeout


def answer_timeout(timeout: float | None) -> float | None:
    """Of a command that has `timeout` seconds itself; a command without may take for ever."""
    return None if timeout is None else timeout + ANSWER_GRACE_S
