"""A program that is spoken with while it runs: output as it comes, input as it is wished, a signal at the end."""

# ruff: noqa: T201

import asyncio
import os
import signal

from libdsec import DSecClient, DSecContainerRunArgs

CALCULATOR = "while read a b; do echo $((a + b)); done"


async def main() -> None:
    async with DSecClient() as client:
        image = os.environ.get("DSEC_IMAGE") or next(i.ref for i in await client.images() if i.kind == "base")
        async with await client.run_container(DSecContainerRunArgs(container_image=image)) as sandbox:
            process = await sandbox.exec_stream(["sh", "-c", CALCULATOR], stdin=True)
            for pair in (b"1 2\n", b"20 22\n"):
                await process.stdin.write(pair)
                print(pair.decode().strip(), "=", (await process.stdout.read()).decode().strip())
            process.signal(signal.SIGTERM)
            print((await process.wait()).how())


asyncio.run(main())
