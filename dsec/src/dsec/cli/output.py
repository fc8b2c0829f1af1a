"""What a command prints: one JSON document, or aligned columns; and progress while somebody waits."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

PATIENCE_S = 1.0
"""How long one waits without being told for what."""


def emit(value: Any) -> None:
    """The one JSON document of a command."""
    document = msgspec.json.format(msgspec.json.encode(whole(value)), indent=2)
    sys.stdout.write(document.decode() + "\n")
    sys.stdout.flush()


def whole(value: Any) -> Any:
    """A value with every field of its structs: on the wire those that have their default may be left out."""
    if isinstance(value, msgspec.Struct):
        return {name: whole(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {name: whole(inner) for name, inner in value.items()}
    return [whole(inner) for inner in value] if isinstance(value, list | tuple) else value


def say(text: str) -> None:
    """A line of the result."""
    sys.stdout.write(text + "\n")


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], colours: Mapping[int, Sequence[str]] | None = None
) -> None:
    """Columns as wide as they need to be; the last one runs free. Empty is only the headers.

    `colours`: of a column, each row's colour on a terminal, as its number in ANSI.
    """
    lines = [list(headers), *[[printable(cell) for cell in row] for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    lines = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    if colours and sys.stdout.isatty():
        for column, shades in colours.items():
            for line, shade in zip(lines[1:], shades, strict=True):
                line[column] = f"\x1b[{shade}m{line[column]}\x1b[0m"
    for line in lines:
        say("  ".join(line).rstrip())


def printable(text: str, besides: str = "") -> str:
    """Text from a sandbox, unable to move the cursor or colour the terminal, but for the characters of `besides`."""
    return "".join(c if c.isprintable() or c in besides else "\N{REPLACEMENT CHARACTER}" for c in text)


def count(sandboxes: int) -> str:
    """How many, in words."""
    return "1 sandbox" if sandboxes == 1 else f"{sandboxes} sandboxes"


def ago(moment: float) -> str:
    """How long since, in the largest unit that says enough."""
    seconds = max(0.0, time.time() - moment)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def amount(count: int | None) -> str:
    """Bytes in binary units; nothing for no bound."""
    if count is None:
        return "-"
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if size < 100 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


@contextlib.asynccontextmanager
async def waiting(what: str) -> AsyncIterator[None]:
    """Says on a terminal what is waited for, once it has taken a second."""
    if not sys.stderr.isatty():
        yield
        return
    spinner = contextlib.ExitStack()

    def show() -> None:
        from rich.console import Console

        spinner.enter_context(Console(stderr=True).status(what))

    timer = asyncio.get_running_loop().call_later(PATIENCE_S, show)
    try:
        with spinner:
            yield
    finally:
        timer.cancel()
