"""An agent builds an environment, another one starts in it: what was written in a sandbox becomes an image."""

# ruff: noqa: T201

import os
import secrets

from libdsec.protocol.images import ScrubRule
from libdsec.sync import DSecClient, DSecContainerRunArgs

workspace = f"examples/sum:{secrets.token_hex(4)}"

with DSecClient() as client:
    image = os.environ.get("DSEC_IMAGE") or next(i.ref for i in client.images() if i.kind == "base")
    with client.run_container(DSecContainerRunArgs(container_image=image)) as builder:
        builder.run_shell(
            "mkdir -p /work && cd /work && echo 'def add(a, b): return a - b' > sums.py && echo 3 > answer.txt "
            "&& echo 'vi sums.py' > /root/.bash_history"
        ).check()
        for change in builder.diff():
            print(change.kind, change.path)
        packed = builder.pack_diff(workspace, rules=[ScrubRule("work/answer.txt", "the reference answer")])
        print("left out:", sorted(f"{row.path} ({row.why})" for row in packed.scrubbed))

    args = DSecContainerRunArgs(container_image=image, workspace=workspace)
    with client.run_container(args) as sandbox:
        print(sandbox.run_shell("ls /work; cat /work/sums.py").stdout)
    client.remove_image(workspace)
