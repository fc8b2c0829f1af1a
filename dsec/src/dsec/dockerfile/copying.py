"""COPY in a sandbox: out of the caller's directory, or out of the sandbox of another stage."""

from __future__ import annotations

import asyncio
import posixpath
import stat
import tempfile
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NamedTuple

from libdsec import Sandbox
from libdsec.files import Files
from libdsec.protocol.errors import PathNotFoundError
from libdsec.protocol.files import FileInfo
from libdsec.protocol.ids import new_token

from . import retar
from .context import Context, Owner, Taken, take
from .patterns import compiled, has_wildcard
from .plan import CopyStep
from .refusals import refusal

_LARGEST_TABLE = 1024 * 1024
"""Of /etc/passwd and /etc/group."""
_MAX_LINKS = 40


class Chosen(NamedTuple):
    """Files of the caller's directory for one step."""

    context: Context
    taken: list[Taken]
    digest: str
    one_file: bool
    """What is copied is one file, which may get another name."""


def choose(context: Context, step: CopyStep) -> Chosen:
    """Blocking: it reads all that is to be copied.

    :raises DSecError: a source that is not there, or cannot be read.
    """
    taken = take(context, step.sources, None)
    one_file = len(step.sources) == 1 and _is_file(context, step.sources[0])
    if not step.target.endswith("/") and not one_file and len(context.find(step.sources[0])) > 1:
        raise refusal(step.line, f"{step.sources[0]!r} is several files: the target {step.target} must end with /")
    return Chosen(context, taken, context.digest(taken), one_file)


def _is_file(context: Context, source: str) -> bool:
    found = context.find(source)
    return len(found) == 1 and not stat.S_ISDIR(found[0].mode)


async def from_context(sandbox: Sandbox, step: CopyStep, chosen: Chosen) -> None:
    owner = await _owner(sandbox.files, step) or Owner()
    directory, name = await _target(sandbox.files, step.target, chosen.one_file)
    taken = [Taken(entry, name or own) for entry, own in chosen.taken]
    root = not await sandbox.files.exists(directory)
    with tempfile.NamedTemporaryFile(prefix="dsec-copy-") as archive:
        await asyncio.to_thread(chosen.context.pack, taken, archive, owner, chosen.digest, root=root)
        archive.flush()
        await sandbox.files.extract(archive.name, directory)


async def from_sandbox(sandbox: Sandbox, step: CopyStep, other: AbstractAsyncContextManager[Sandbox]) -> None:
    async with other as source:
        owner = await _owner(sandbox.files, step)
        paths = [path for each in step.sources for path in await _matching(source.files, each)]
        if not paths:
            raise refusal(step.line, f"nothing there is called {' '.join(step.sources)[:200]}")
        if len(paths) > 1 and not step.target.endswith("/"):
            raise refusal(step.line, f"it is {len(paths)} sources: the target {step.target} must end with /")
        for path in paths:
            real, info = await _followed(source.files, path, step.line)
            if info.type == "directory":
                await _directory(source.files, real, sandbox.files, step.target, owner)
            elif info.type == "file":
                await _file(source.files, real, posixpath.basename(path), sandbox.files, step.target, owner)
            else:
                raise refusal(step.line, f"{path} is neither a file nor a directory, but a {info.type}")


async def _directory(source: Files, path: str, files: Files, target: str, owner: Owner | None) -> None:
    there = await files.exists(target)
    with tempfile.TemporaryDirectory(prefix="dsec-copy-") as scratch:
        archive = await _archived(source, path, scratch, owner, without_root=there)
        await files.extract(archive, target)


async def _file(source: Files, path: str, name: str, files: Files, target: str, owner: Owner | None) -> None:
    """Unpacked beside everything, then moved to where it belongs: an archive of a file has the file's own name."""
    directory, new_name = await _target(files, target, True)
    landing = f"/.dsec-copy-{new_token()[:12]}"
    await files.mkdir(directory, parents=True)
    with tempfile.TemporaryDirectory(prefix="dsec-copy-") as scratch:
        archive = await _archived(source, path, scratch, owner, without_root=False)
        await files.extract(archive, landing)
    await files.move(f"{landing}/{posixpath.basename(path)}", posixpath.join(directory, new_name or name))
    await files.remove(landing, recursive=True)


async def _archived(source: Files, path: str, scratch: str, owner: Owner | None, *, without_root: bool) -> str:
    came, went = Path(scratch, "came"), Path(scratch, "went")
    await source.archive(path, str(came))

    def rewritten() -> None:
        with came.open("rb") as reader, went.open("wb") as writer:
            retar.rewrite(reader, writer, owner, without_root=without_root)

    await asyncio.to_thread(rewritten)
    return str(went)


async def _target(files: Files, target: str, one_file: bool) -> tuple[str, str | None]:
    """The directory that is copied into, and the name that a single file gets there, if not its own."""
    if target.endswith("/") or not one_file:
        return target, None
    try:
        if (await files.stat(target, follow=True)).type == "directory":
            return target, None
    except PathNotFoundError:
        pass  # it is made
    return posixpath.dirname(target), posixpath.basename(target)


async def _matching(files: Files, source: str) -> list[str]:
    """Paths that a source names, its wildcards put in one directory after the other."""
    paths = ["/"]
    for name in posixpath.normpath(f"/{source}").split("/"):
        if not name:
            continue
        if not has_wildcard(name):
            paths = [posixpath.join(path, name) for path in paths]
            continue
        pattern, found = compiled(name, deep=False), []
        for path in paths:
            entries = await _entries(files, path)
            found += [posixpath.join(path, entry.path) for entry in entries if pattern.matches(entry.path)]
        paths = found
    return paths


async def _entries(files: Files, path: str) -> Sequence[FileInfo]:
    try:
        if (await files.stat(path, follow=True)).type != "directory":
            return ()
    except PathNotFoundError:
        return ()
    return await files.list(path)


async def _followed(files: Files, path: str, line: int) -> tuple[str, FileInfo]:
    """What a path ends at, if it is a link."""
    info = await _there(files, path, line)
    if info.target is None:
        return path, info
    return await _walked(files, path, line)


async def _walked(files: Files, path: str, line: int) -> tuple[str, FileInfo]:
    """As the kernel walks it, name by name: `..` in a link is the directory above that in which the link lies, which
    may be another than the one that its path names."""
    real, links = "/", 0
    info = await _there(files, real, line)
    waiting = path.split("/")[::-1]
    while waiting:
        name = waiting.pop()
        if name in ("", "."):
            continue
        if name == "..":
            real = posixpath.dirname(real)
            info = await _there(files, real, line)
            continue
        here = posixpath.join(real, name)
        info = await _there(files, here, line)
        if info.target is None:
            real = here
            continue
        links += 1
        if links > _MAX_LINKS:
            raise refusal(line, f"{path} is a chain of more than {_MAX_LINKS} links")
        real = "/" if info.target.startswith("/") else real
        waiting += info.target.split("/")[::-1]
    if info.target is not None:  # a link to `.` or to `/`
        info = await _there(files, real, line)
    return real, info


async def _there(files: Files, path: str, line: int) -> FileInfo:
    try:
        return await files.stat(path)
    except PathNotFoundError:
        raise refusal(line, f"there is no {path} to copy") from None


async def _owner(files: Files, step: CopyStep) -> Owner | None:
    """Of `--chown=USER[:GROUP]`, by name or number; without a group its number is the user's.

    :raises InvalidArgumentError: a name that the image does not know.
    """
    if step.owner is None:
        return None
    user, colon, group = step.owner.partition(":")
    if not user or (colon and not group):
        raise refusal(step.line, f"--chown={step.owner[:60]} is none of USER, USER:GROUP")
    uid = await _number(files, step.line, "/etc/passwd", user)
    return Owner(uid, await _number(files, step.line, "/etc/group", group) if group else uid)


async def _number(files: Files, line: int, table: str, name: str) -> int:
    if name.isascii() and name.isdecimal() and int(name) < 65_536:
        return int(name)
    for entry in (await _table(files, table)).decode("utf-8", "replace").splitlines():
        fields = entry.split(":")
        if len(fields) > 2 and fields[0] == name and fields[2].isascii() and fields[2].isdecimal():
            return int(fields[2])
    raise refusal(line, f"--chown names {name[:60]!r}, which is no number below 65536 and not in the image's {table}")


async def _table(files: Files, path: str) -> bytes:
    """Nothing where it is no file: a step may have put a FIFO there, which nobody would ever write to."""
    try:
        if (await files.stat(path, follow=True)).type != "file":
            return b""
        return await files.read(path, limit=_LARGEST_TABLE)
    except PathNotFoundError:
        return b""
