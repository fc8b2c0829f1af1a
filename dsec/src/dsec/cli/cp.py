"""`dsec cp`: files and directories into and out of a sandbox."""

from __future__ import annotations

import contextlib
import os
import posixpath
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

import typer

from libdsec import Transfer
from libdsec.client import DSecClient
from libdsec.files import Files
from libdsec.protocol.errors import InvalidArgumentError, PathNotFoundError

from .options import JsonOption, UserOption, find_sandbox
from .outcome import execute, warn
from .output import amount, emit, printable

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Place(NamedTuple):
    """One side of a copy: `SANDBOX:PATH`, or a local path when `sandbox` is None."""

    sandbox: str | None
    path: str


@app.command()
def cp(
    source: Annotated[str, typer.Argument(metavar="SRC", help="PATH or SANDBOX:PATH.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="PATH or SANDBOX:PATH.")],
    user: UserOption = None,
    json: JsonOption = False,
) -> None:
    """Copy a file, or a directory with all below it, into or out of a sandbox.

    \b
    dsec cp app.py 3f2k:/srv/app.py
    dsec cp 3f2k:/var/log ./log
    dsec cp ./src 3f2k:/work/

    Into a directory that exists it is copied under its own name, as cp does. A local path with a colon before any slash
    is written as ./PATH. What a sandbox sends is written below DST only: devices and links that lead out are left out.
    """
    here, there = place(source), place(target)

    async def work(client: DSecClient) -> None:
        if (here.sandbox is None) == (there.sandbox is None):
            raise InvalidArgumentError("cannot copy: one side must be in a sandbox (SANDBOX:PATH), the other local")
        named = here.sandbox or there.sandbox or ""
        files = (await find_sandbox(client, named)).files
        files = files.as_user(user) if user is not None else files
        with _shown(json) as progress:
            if here.sandbox is None:
                transfer = await _into(files, here.path, there.path, progress)
            else:
                transfer = await _out_of(files, here.path, there.path, progress)
        if json:
            emit(transfer)
        elif transfer.skipped:
            names = ", ".join(map(printable, transfer.skipped_names[:3]))
            warn(f"left out {transfer.skipped} entries that are no plain files or lead out of the directory: {names}")

    execute(json, work)


def place(text: str) -> Place:
    sandbox, colon, path = text.partition(":")
    if not colon or "/" in sandbox or not sandbox:
        return Place(None, text)
    return Place(sandbox, path or ".")


async def _into(files: Files, local: str, path: str, progress: Callable[[int], None]) -> Transfer:
    target = path
    if await _is_directory(files, path):
        target = posixpath.join(path, _name(local))
    elif path.endswith("/") and not _is_local_directory(local):
        raise PathNotFoundError(f"cannot copy into {path!r}: there is no such directory", path=path)
    return await files.upload(local, target, progress=progress)


async def _out_of(files: Files, path: str, local: str, progress: Callable[[int], None]) -> Transfer:
    target = local
    if _is_local_directory(local):
        target = os.path.join(local, posixpath.basename(posixpath.normpath(path)))
    return await files.download(path, target, progress=progress)


def _name(local: str) -> str:
    return os.path.basename(os.path.abspath(local))


def _is_local_directory(local: str) -> bool:
    return os.path.isdir(local)


async def _is_directory(files: Files, path: str) -> bool:
    try:
        return (await files.stat(path, follow=True)).type == "directory"
    except PathNotFoundError:
        return False


@contextlib.contextmanager
def _shown(json: bool) -> Iterator[Callable[[int], None]]:
    if json or not sys.stderr.isatty():
        yield lambda moved: None
        return
    from rich.console import Console

    with Console(stderr=True).status("copying") as status:
        yield lambda moved: status.update(f"copying: {amount(moved)}")
