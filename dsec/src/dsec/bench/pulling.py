"""Full pulls of the burst's images, each of them ready when its containers have read their working set.

Every image is pulled, three at a time, and its layers are unpacked by `tar`, each once for all images. Then its
containers run, one after another: the leanest there are, those of the bench's own floor (namespaces and an overlay over
the unpacked layers, no control group). How it is pulled:

- *least*: each layer's archive is fetched once and goes through `tar` as it comes; nothing is verified or kept.
- *skopeo*: `skopeo copy` into one OCI layout, whose layers are unpacked then.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from libdsec.protocol.errors import InternalError

from . import crowd, registry
from .native import Native, output_of
from .registry import Blobs

_AT_ONCE = 3
_TIMEOUT_S = 600.0


class Pulled(msgspec.Struct, frozen=True):
    """What one way cost, but for the disk."""

    seconds: float
    each_s: list[float]


class Pulling:
    """`target` is an empty directory on the disk that counts; `compiled` has the floor."""

    def __init__(self, url: str, blobs: Blobs, containers: int, target: Path, compiled: Path) -> None:
        """`containers`: of each image."""
        self._url, self._blobs, self._containers = url, blobs, containers
        self._target, self._compiled = target, compiled
        self._layout = target / "layout"

    async def least(self) -> Pulled:
        async def nothing(number: int) -> None:
            pass

        return await self._pull(nothing, self._stream)

    async def skopeo(self) -> Pulled:
        """With skopeo, which has to be installed."""
        return await self._pull(self._copy, self._unpack)

    async def _pull(self, copy: Callable[[int], Awaitable[None]], unpack: Callable[[str, Path], None]) -> Pulled:
        gate = asyncio.Semaphore(_AT_ONCE)
        begin = time.perf_counter()
        base = asyncio.Event()

        async def ready(number: int) -> float:
            # what all share comes with the first one, once
            if number:
                await base.wait()
            async with gate:
                await copy(number)
                if not number:
                    await asyncio.to_thread(unpack, self._blobs.base, self._target / "base")
                    base.set()
                await asyncio.to_thread(unpack, self._blobs.workspaces[number], self._target / str(number))
            await self._run(number)
            return time.perf_counter() - begin

        async with asyncio.TaskGroup() as tasks:
            each = [tasks.create_task(ready(number)) for number in range(len(self._blobs.workspaces))]
        return Pulled(time.perf_counter() - begin, [task.result() for task in each])

    async def _run(self, number: int) -> None:
        scratch = self._target / f"scratch-{number}"
        scratch.mkdir()
        floor = Native(self._compiled, Path(f"{self._target / str(number)}:{self._target}/base"), scratch)
        command = f"test $({crowd.READ}) = {self._blobs.needed_bytes}"
        await floor.floor_create(self._containers, ["/bin/sh", "-c", command])

    def _stream(self, blob: str, target: Path) -> None:
        target.mkdir()
        with (
            urllib.request.urlopen(f"{self._url}/{registry.path_of(blob)}", timeout=60) as source,
            subprocess.Popen(["tar", "xzf", "-", "-C", str(target)], stdin=subprocess.PIPE) as tar,
        ):
            assert tar.stdin is not None
            shutil.copyfileobj(source, tar.stdin, 1024 * 1024)
            tar.stdin.close()
            if tar.wait(_TIMEOUT_S) != 0:
                raise InternalError(f"cannot unpack {blob}: tar ended with {tar.returncode}")

    async def _copy(self, number: int) -> None:
        image = f"{self._url.removeprefix('http:')}/{registry.REPOSITORY}:{number}"
        self._layout.mkdir(exist_ok=True)
        copy = ("skopeo", "--insecure-policy", "copy", "--quiet", "--src-tls-verify=false")
        shared = ("--dest-shared-blob-dir", str(self._layout))
        await output_of([*copy, *shared, f"docker:{image}", f"oci:{self._target}/oci-{number}:latest"], _TIMEOUT_S)

    def _unpack(self, blob: str, target: Path) -> None:
        target.mkdir()
        archive = self._layout / blob.replace(":", "/")
        subprocess.run(["tar", "xzf", str(archive), "-C", str(target)], check=True, timeout=_TIMEOUT_S)
