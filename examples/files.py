"""Files in and out, a directory up and down, and changes as they happen. It needs no shell in the image."""

# ruff: noqa: T201

import asyncio
import os
import tempfile
from pathlib import Path

from libdsec import DSecClient, DSecContainerRunArgs


async def main() -> None:
    async with DSecClient() as client:
        image = os.environ.get("DSEC_IMAGE") or next(i.ref for i in await client.images() if i.kind == "base")
        async with await client.run_container(DSecContainerRunArgs(container_image=image)) as sandbox:
            files = sandbox.files
            await files.write("/work/notes.txt", "first line\n", parents=True)
            await files.append("/work/notes.txt", "second line\n")
            print(await files.read_text("/work/notes.txt"))

            with tempfile.TemporaryDirectory() as local:
                await asyncio.to_thread(Path(local, "data").write_bytes, bytes(100_000))
                up = await files.upload(local, "/work/tree")
                down = await files.download("/work/tree", Path(local, "back"))
                print(f"up {up.bytes} bytes, down {down.bytes} bytes")

            print([(entry.path, entry.type, entry.size) for entry in await files.list("/work", recursive=True)])

            async with files.watch("/work") as events:
                await sandbox.run_shell("echo more >> /work/notes.txt")
                async for event in events:
                    print(event.kind, event.path)
                    break


asyncio.run(main())
