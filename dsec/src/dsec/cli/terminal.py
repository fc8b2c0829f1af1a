"""This process's terminal, lent to a command in a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator

from libdsec.process import Process
from libdsec.protocol.errors import InvalidArgumentError
from libdsec.protocol.exec import ExecResult

from .attach import attach


def size() -> tuple[int, int]:
    """Rows and columns."""
    columns, rows = os.get_terminal_size(sys.stdin.fileno())
    return rows or 24, columns or 80


def check() -> None:
    """:raises InvalidArgumentError: standard input is no terminal."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise InvalidArgumentError("cannot give the command a terminal: standard input is none; leave out --tty")


async def attach_terminal(process: Process) -> ExecResult:
    """As `attach`, with our terminal raw: keys go to the command as they are, and so do changes of its size."""
    with _raw(sys.stdin.fileno()), _resizes(process):
        return await attach(process, stdin=True)


@contextlib.contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)  # what was typed ahead is kept
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _resizes(process: Process) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, lambda: process.resize(*size()))
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
