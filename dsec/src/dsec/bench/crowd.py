"""The images of the burst: one base, and many workspaces that have no chunk in common.

A workspace is the trees of some packages, each file begun with a line that no other workspace has, so that nothing of
one helps with another. Its *working set* is a twelfth of its bytes, neighbours in the tree, as a program reads a
package; their names lie in it, so that a sandbox needs nothing but `xargs` and `cat`. They are published as layers in a
store, which an HTTP server with a latency and a bandwidth gives out, as it does what a full pull fetches (`registry`).
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
import tarfile
import urllib.request
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from libdsec import DSecClient
from libdsec.protocol.errors import InternalError

from .archives import Archive
from .native import finish

WORKING_SHARE = 12
"""The working set is one such part."""
WORKING_SET = "workspace/.working-set"
READ = f"xargs cat </{WORKING_SET} | wc -c"
_MAX_FILE = 8 * 1024 * 1024

Files = dict[str, bytes]


class Workspace(msgspec.Struct, frozen=True):
    ref: str
    needed_bytes: int
    """Of its working set."""
    content_bytes: int


def read_trees(archives: Sequence[Archive]) -> Files:
    """Every file of the archives by its name."""
    found: Files = {}
    for archive in archives:
        with tarfile.open(archive.path, "r:gz") as source:
            for member in source:
                if member.size <= _MAX_FILE and (content := source.extractfile(member)) is not None:
                    found[f"workspace/{archive.name}/{member.name.partition('/')[2]}"] = content.read()
    return dict(sorted(found.items()))


def add_workspace(target: tarfile.TarFile, files: Files, number: int) -> Workspace:
    salt = f"# of image {number}\n".encode()
    working, needed = _working_set(files, number, len(salt))
    total = 0
    for name, content in [(WORKING_SET, "\n".join(f"/{each}" for each in working).encode()), *files.items()]:
        member = tarfile.TarInfo(name)
        whole = content if name == WORKING_SET else salt + content
        member.size = len(whole)
        total += member.size
        target.addfile(member, io.BytesIO(whole))
    return Workspace(f"burst/workspace-{number}:1", needed, total)


def _working_set(files: Files, number: int, salt: int) -> tuple[list[str], int]:
    """Neighbours from a place on that differs from image to image."""
    names = list(files)
    wanted, found, size = sum(map(len, files.values())) // WORKING_SHARE, [], 0
    at = number * len(names) // 7 % len(names)
    while size < wanted:
        name = names[at % len(names)]
        found.append(name)
        size += len(files[name]) + salt
        at += 1
    return found, size


async def publish(client: DSecClient, files: Files, number: int, scratch: Path) -> Workspace:
    """One workspace into the node's store; the node forgets it."""

    def pack() -> Workspace:
        with tarfile.open(scratch, "w") as target:
            return add_workspace(target, files, number)

    workspace = await asyncio.to_thread(pack)
    await client.build_image(workspace.ref, f"tar:{scratch}", kind="workspace")
    await client.publish_image(workspace.ref)
    await client.remove_image(workspace.ref)
    return workspace


@contextlib.asynccontextmanager
async def served(directory: Path, latency_ms: float, bandwidth_mb: float) -> AsyncIterator[str]:
    """The URL of a server in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dsec.testing.http_store", str(directory)),
        *(f"--latency-ms={latency_ms}", f"--bandwidth-mb={bandwidth_mb}"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
        if not line.startswith("http://"):
            raise InternalError(f"cannot serve {directory}: the server said {line[:200]!r}")
        yield line
    finally:
        await finish(process)


class Counts(msgspec.Struct, frozen=True):
    requests: int
    bytes: int


async def counts(url: str) -> Counts:
    """What the server has sent since its start."""

    def ask() -> Counts:
        with urllib.request.urlopen(f"{url}/-/counts", timeout=30) as answer:
            return msgspec.convert(json.load(answer), Counts)

    return await asyncio.to_thread(ask)
