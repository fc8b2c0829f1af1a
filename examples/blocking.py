"""The same names for code without an event loop. `with` stops the sandbox."""

# ruff: noqa: T201

import os

from libdsec.sync import DSecClient, DSecContainerRunArgs

with DSecClient() as client:
    image = os.environ.get("DSEC_IMAGE") or next(i.ref for i in client.images() if i.kind == "base")
    with client.run_container(DSecContainerRunArgs(container_image=image, env={"NAME": "world"})) as sandbox:
        print(sandbox.run_shell("echo hello $NAME").check().stdout.strip())
