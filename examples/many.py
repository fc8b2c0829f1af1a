"""Twenty tasks, each in a sandbox of its own, eight at a time."""

# ruff: noqa: T201

import asyncio
import os
import time

from libdsec import DSecClient, DSecContainerRunArgs


async def main() -> None:
    gate = asyncio.Semaphore(8)
    async with DSecClient() as client:
        image = os.environ.get("DSEC_IMAGE") or next(i.ref for i in await client.images() if i.kind == "base")

        async def task(number: int) -> int:
            args = DSecContainerRunArgs(container_image=image, labels={"example": "many"}, deadline=120)
            async with gate, await client.run_container(args) as sandbox:
                result = await sandbox.run_shell(f"echo $(({number} * {number}))", timeout=30)
                return int(result.check().stdout)

        start = time.perf_counter()
        squares = await asyncio.gather(*map(task, range(20)))
        print(squares, f"{20 / (time.perf_counter() - start):.0f} sandboxes a second")


asyncio.run(main())
