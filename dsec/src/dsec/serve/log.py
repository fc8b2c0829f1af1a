"""The server's log: structlog lines to standard error or a file; what libraries say through `logging` joins them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, TextIO

import structlog

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


def configure(log_file: str | None) -> TextIO:
    """The log's stream, open for as long as the process lives.

    :raises OSError: the file cannot be opened.
    """
    descriptor = sys.stderr.fileno() if log_file is None else os.open(log_file, _APPEND, 0o600)
    stream = os.fdopen(descriptor, "w", encoding="utf-8", buffering=1, closefd=log_file is not None)
    renderer: Any = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if stream.isatty()
        else structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"])
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _one_line,
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(stream),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=stream, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    return stream


def _one_line(_: Any, __: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """logfmt takes no values it does not know."""
    return {k: v if isinstance(v, str | int | float | bool) or v is None else repr(v) for k, v in event.items()}
