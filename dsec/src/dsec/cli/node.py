"""`dsec node`: the machine that sandboxes run on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Annotated

import msgspec
import typer

from dsec.linux.cgroups import Hierarchies
from dsec.linux.swap import Made, Setup, areas_in_use
from dsec.linux.swap.zram import compression
from libdsec.protocol.errors import InvalidArgumentError, UnsupportedOperationError

from .options import JsonOption, mebibytes
from .outcome import execute_alone
from .output import amount, emit, say, table, waiting

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, no_args_is_help=True, help="Set the machine up, and show what it has."
)

ZramOption = Annotated[
    float | None, typer.Option("--zram", parser=mebibytes, metavar="SIZE", help="8g; without it half of memory.")
]
NoZramOption = Annotated[bool, typer.Option("--no-zram", help="Make no zram.")]
SwapFileOption = Annotated[
    str | None, typer.Option("--swap-file", metavar="PATH", help="Make a swap file, on ext4, xfs or btrfs.")
]
SwapSizeOption = Annotated[
    float | None, typer.Option("--swap-size", parser=mebibytes, metavar="SIZE", help="Of the swap file: 16g.")
]
UndoOption = Annotated[bool, typer.Option("--undo", help="Take away what earlier set-ups made, and only that.")]


class AreaStatus(msgspec.Struct, frozen=True):
    """A swap area of `dsec node status --json`."""

    path: str
    kind: str
    bytes: int
    used_bytes: int
    priority: int
    ours: bool
    """Made by `dsec node setup`."""
    algorithm: str | None = None
    memory_bytes: int | None = None
    """What zram takes for what is in it."""


class NodeStatus(msgspec.Struct, frozen=True):
    freezer: str | None
    """`v1`, `v2`; null where nothing can be frozen."""
    swap: list[AreaStatus]


@app.command()
def setup(
    zram: ZramOption = None,
    no_zram: NoZramOption = False,
    swap_file: SwapFileOption = None,
    swap_size: SwapSizeOption = None,
    undo: UndoOption = False,
    json: JsonOption = False,
) -> None:
    """Make swap, so that pausing gives memory back.

    \b
    dsec node setup                                              zram of half the machine's memory
    dsec node setup --zram 8g
    dsec node setup --swap-file /var/swap.dsec --swap-size 32g   and a file on a disk
    dsec node setup --no-zram --swap-file /var/swap.dsec --swap-size 32g
    dsec node setup --undo

    zram compresses in memory: fast, and good for what compresses. A file takes everything; with both, zram is filled
    first, so for data that does not compress leave zram out. Without either, a paused sandbox gives back only files.

    Asked again, what is there is kept. It does not outlast a reboot: run it at boot. Swap that was here before is left
    alone. Needs root.
    """

    async def work() -> None:
        steps = _steps(zram, no_zram, swap_file, swap_size, undo)
        async with waiting("setting up swap"):
            done = await asyncio.to_thread(lambda: [made for step in steps for made in step()])
        if json:
            emit(done)
        elif not done:
            say("there is nothing to take away")
        for made in () if json else done:
            say(f"{_KINDS[made.kind]} {made.path} of {amount(made.bytes)}: {_STATES[made.state]}")

    execute_alone(json, work)


@app.command()
def status(json: JsonOption = False) -> None:
    """Show what pausing can use: the freezer, and the swap with what is in it.

    \b
    dsec node status
    dsec node status --json
    """

    async def work() -> None:
        found = NodeStatus(_freezer(), _areas())
        if json:
            emit(found)
            return
        say(f"freezer: {'cgroup ' + found.freezer if found.freezer else 'none, sandboxes cannot be paused'}")
        if not found.swap:
            say("swap: none; make some with `dsec node setup`")
            return
        rows = [
            (a.path, a.kind, amount(a.bytes), amount(a.used_bytes), _packed(a), "dsec" if a.ours else "the machine")
            for a in found.swap
        ]
        table(("SWAP", "KIND", "SIZE", "USED", "TAKES", "MADE BY"), rows)

    execute_alone(json, work)


_KINDS = {"zram": "zram", "file": "swap file"}
_STATES = {
    "made": "made, and swapped on",
    "kept": "there already",
    "found": "there already, and not made by us; left alone",
    "removed": "taken away",
}


def _steps(
    zram: float | None, no_zram: bool, swap_file: str | None, swap_size: float | None, undo: bool
) -> list[Callable[[], list[Made]]]:
    """What to do, once all was checked."""
    node = Setup(_state_dir())
    if undo:
        if zram is not None or no_zram or swap_file is not None or swap_size is not None:
            raise InvalidArgumentError("cannot undo and set up at once: give --undo alone", field="--undo")
        return [node.undo]
    if zram is not None and no_zram:
        raise InvalidArgumentError("cannot make zram and make none: give --zram or --no-zram", field="--zram")
    if (swap_file is None) != (swap_size is None):
        raise InvalidArgumentError(
            "cannot make a swap file without both its place and its size: give --swap-file and --swap-size",
            field="--swap-file",
        )
    steps: list[Callable[[], list[Made]]] = []
    if not no_zram:
        steps.append(lambda: [node.make_zram(None if zram is None else _bytes(zram))])
    if swap_file is not None and swap_size is not None:
        path, size = os.path.abspath(swap_file), _bytes(swap_size)
        steps.append(lambda: [node.make_file(path, size)])
    if not steps:
        raise InvalidArgumentError("cannot set up nothing: leave --no-zram out, or give --swap-file", field="--no-zram")
    return steps


def _areas() -> list[AreaStatus]:
    ours = _ours()
    found = []
    for area in areas_in_use():
        packed = compression(area.path) if area.zram else None
        found.append(
            AreaStatus(
                area.path,
                "zram" if area.zram else "file" if os.path.isfile(area.path) else "partition",
                area.bytes,
                area.used_bytes,
                area.priority,
                area.path in ours,
                packed.algorithm if packed else None,
                packed.memory_bytes if packed else None,
            )
        )
    return found


def _ours() -> list[str]:
    """None of another user's node, whose record is not ours to read."""
    try:
        return Setup(_state_dir()).ours()
    except PermissionError:
        return []


def _freezer() -> str | None:
    try:
        return f"v{Hierarchies.detect().require('freezer').version}"
    except UnsupportedOperationError:
        return None


def _packed(area: AreaStatus) -> str:
    return "-" if area.memory_bytes is None else f"{amount(area.memory_bytes)} ({area.algorithm})"


def _state_dir() -> str:
    return os.environ.get("DSEC_STATE_DIR") or "/var/lib/dsec"


def _bytes(size: float) -> int:
    return int(size * 1024 * 1024)
