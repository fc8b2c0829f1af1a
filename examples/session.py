"""A shell whose directory, variables and jobs stay from one command to the next."""

# ruff: noqa: T201

import os

from libdsec.sync import DSecClient, DSecContainerRunArgs

with DSecClient() as client:
    image = os.environ.get("DSEC_IMAGE") or next(i.ref for i in client.images() if i.kind == "base")
    with client.run_container(DSecContainerRunArgs(container_image=image)) as sandbox, sandbox.session() as session:
        session.run("cd /usr/share; where=$PWD")
        print(session.run("echo $where; ls | wc -l").stdout.split())
        late = session.run("sleep 60", timeout=1)
        print(late.how(), "and the shell lives:", session.run("pwd").stdout.strip())
