"""A command that ran and failed is a result; one that never ran is an error; neither is ever taken for the other."""

# ruff: noqa: T201

import os

from libdsec.errors import CommandNotStartedError
from libdsec.sync import DSecClient, DSecContainerRunArgs

with DSecClient() as client:
    image = os.environ.get("DSEC_IMAGE") or next(i.ref for i in client.images() if i.kind == "base")
    with client.run_container(DSecContainerRunArgs(container_image=image, memory_limit_mb=128)) as sandbox:
        print("exit:    ", sandbox.run_shell("exit 3").how())
        print("signal:  ", sandbox.run_shell("kill -15 $$").how())

        late = sandbox.run_shell("echo so far; sleep 60", timeout=1)
        print("timeout: ", late.how(), "| printed:", late.stdout.strip())

        hungry = sandbox.run_shell("exec dd if=/dev/zero of=/dev/null bs=1G count=1")  # wants a gigabyte at once
        print("memory:  ", hungry.how(), "| processes killed:", hungry.oom_kills)

        long = sandbox.run_shell("seq 1000000")
        print("bounded: ", f"{len(long.stdout_bytes)} of {long.stdout_total} bytes kept, truncated: {long.truncated}")

        try:
            sandbox.run(["no-such-program"])
        except CommandNotStartedError as error:
            print("never ran:", error, error.details)
