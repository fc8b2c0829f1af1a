"""Create a sandbox, run a command in it, stop it."""

# ruff: noqa: T201

import asyncio
import os

from libdsec import DSecClient, DSecContainerRunArgs


async def main() -> None:
    async with DSecClient() as client:
        image = os.environ.get("DSEC_IMAGE") or next(i.ref for i in await client.images() if i.kind == "base")
        sandbox = await client.run_container(
            DSecContainerRunArgs(
                container_image=image,
                memory_limit_mb=512,
                cpu_cores_limit=1,
                ttl_running_stop=600,  # gone by itself when nobody used it for ten minutes
            ),
            timeout=60,
        )
        result = await sandbox.run_shell("echo hello from $(hostname); nproc", timeout=30)
        print(result.exit_code, result.stdout.split())
        await sandbox.stop()


asyncio.run(main())
