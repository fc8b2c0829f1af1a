"""Bugs: what is not one of our errors is logged with an id, and the caller gets the id."""

from __future__ import annotations

import secrets

import structlog

from libdsec.protocol.errors import DSecError, InternalError

_log = structlog.get_logger("dsec.incident")


def as_dsec_error(error: BaseException, doing: str) -> DSecError:
    """Itself if it is one of ours, else an `InternalError` whose incident id stands beside the traceback in the log."""
    if isinstance(error, DSecError):
        return error
    incident = secrets.token_hex(6)
    _log.error("incident", incident=incident, doing=doing, exc_info=error)
    return InternalError(
        f"cannot {doing}: an internal error (incident {incident}; see the server's log)", incident=incident
    )
