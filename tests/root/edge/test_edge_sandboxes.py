"""Real sandboxes through the real server: what they see, what bounds them, what is told when they end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest
from node_process import NodeProcess, loop_devices

from dsec.testing.wire_client import WireClient, wire_client
from libdsec.protocol.errors import CommandNotStartedError, SandboxFailedError
from libdsec.protocol.spec import MIB

pytestmark = pytest.mark.needs("root", "linux", "erofs", "overlay", "aether")
WAIT_S = 20.0


async def create(client: WireClient, **spec: object) -> str:
    info = await client.call("sandbox.create", spec={"image": "tiny:1", **spec})
    return str(info["id"])


async def shell(client: WireClient, sandbox: str, line: str, **options: object) -> tuple[dict[str, object], str]:
    answer, output = await client.run(sandbox, "/bin/sh", "-c", line, **options)
    return answer, output.decode()


async def until_final(client: WireClient, sandbox: str) -> dict[str, object]:
    async with asyncio.timeout(WAIT_S):
        while True:
            info: dict[str, object] = await client.call("sandbox.inspect", sandbox=sandbox)
            if info["state"] in ("failed", "stopped"):
                return info
            await asyncio.sleep(0.005)


def pid_of_init(node: NodeProcess, sandbox: str) -> int:
    """PID 1 of the sandbox, found by its host name."""
    for pid in node.inits():
        uts = subprocess.run(
            ["nsenter", "-t", str(pid), "-u", "hostname"], capture_output=True, text=True, check=False, timeout=10
        )
        if uts.stdout.strip() == sandbox:
            return pid
    raise AssertionError(f"no init of {sandbox}")


async def test_every_option_is_visible_inside(node: NodeProcess) -> None:
    async with wire_client(node.socket) as client:
        sandbox = await create(
            client,
            hostname="box.example",
            env={"A": "1"},
            cwd="/tmp",
            user="user",
            limits={"memory_bytes": 64 * MIB, "cpu_cores": 1, "pids": 40},
        )
        _, seen = await shell(client, sandbox, "hostname; echo $A $HOME; pwd; id -u; nproc; head -1 /proc/meminfo")
        assert seen.split("\n")[:5] == ["box.example", "1 /home/user", "/tmp", "1000", "1"]
        assert int(seen.split("\n")[5].split()[1]) * 1024 == 64 * MIB
        _, output = await client.run(sandbox, "id", "-u", user="0")
        assert output == b"0\n"
        await client.call("sandbox.stop", sandbox=sandbox)


async def test_out_of_memory_ends_the_command_and_not_the_sandbox(node: NodeProcess) -> None:
    async with wire_client(node.socket) as client:
        sandbox = await create(client, limits={"memory_bytes": 48 * MIB})
        # all at once: what grows bit by bit may have the kernel look for pages for longer than a test waits
        answer, _ = await client.run(sandbox, "dd", "if=/dev/zero", "of=/dev/null", "bs=256M", "count=1", timeout_s=60)
        assert answer["ended"] == "signaled"
        assert answer["oom_kills"] >= 1
        answer, _ = await client.run(sandbox, "true")
        assert (answer["exit_code"], answer["oom_kills"]) == (0, 0)
        await client.call("sandbox.stop", sandbox=sandbox)


async def test_too_many_processes_are_refused_and_counted(node: NodeProcess) -> None:
    async with wire_client(node.socket) as client:
        sandbox = await create(client, limits={"pids": 24})
        line = "for i in $(seq 60); do sleep 1000 & done; wait"
        answer, _ = await shell(client, sandbox, line, timeout_s=3)
        assert answer["pids_refused"] >= 1
        answer, _ = await client.run(sandbox, "true")
        assert answer["exit_code"] == 0
        await client.call("sandbox.stop", sandbox=sandbox)


@pytest.mark.needs("loop", "mkfs.ext4")
async def test_a_disk_limit_holds(node: NodeProcess) -> None:
    before = loop_devices(node.directory)
    async with wire_client(node.socket) as client:
        sandbox = await create(client, limits={"disk_bytes": 16 * MIB})
        answer, _ = await shell(client, sandbox, "dd if=/dev/zero of=/big bs=1048576 count=64 2>/dev/null")
        assert answer["exit_code"] != 0
        await client.call("sandbox.stop", sandbox=sandbox)
    NodeProcess.wait(lambda: loop_devices(node.directory) <= before)


async def test_a_killed_init_is_told_with_its_cause(node: NodeProcess) -> None:
    async with wire_client(node.socket) as client:
        sandbox = await create(client)
        running = client.start("exec", sandbox=sandbox, argv=["sleep", "1000"])
        await client.run(sandbox, "true")
        os.kill(pid_of_init(node, sandbox), signal.SIGKILL)
        with pytest.raises(SandboxFailedError, match="signal 9"):
            await running.answer()
        info = await until_final(client, sandbox)
        assert (info["state"], info["cause"]) == ("failed", "init_killed")
        entries = (await client.call("sandbox.logs", sandbox=sandbox))["entries"]
        (failed,) = (entry for entry in entries if entry["event"] == "failed")
        assert failed["detail"]["signal"] == 9
        await client.call("sandbox.stop", sandbox=sandbox)


async def test_errors_before_the_program_name_their_stage(node: NodeProcess) -> None:
    async with wire_client(node.socket) as client:
        sandbox = await create(client)
        for options, stage in (({"cwd": "/none"}, "cwd"), ({"user": "nobody-here"}, "user"), ({}, "exec")):
            with pytest.raises(CommandNotStartedError) as caught:
                await client.run(sandbox, "/bin/nonsense", **options)
            assert caught.value.details["stage"] == stage
        await client.call("sandbox.stop", sandbox=sandbox)


async def test_root_inside_changes_nothing_of_the_host(node: NodeProcess) -> None:
    line = """
    for f in /proc/sys/kernel/core_pattern /proc/sys/vm/drop_caches /proc/sys/net/core/somaxconn /proc/sysrq-trigger \
             /proc/irq/*/smp_affinity /proc/bus/pci/*/* /proc/fs/*/* /sys/kernel/*/* /sys/power/* /sys/firmware/*/*; do
        [ -f "$f" ] || continue
        (echo 1 > "$f") 2>/dev/null && echo "wrote $f"
    done
    ls -A /sys/firmware
    """
    async with wire_client(node.socket) as client:
        sandbox = await create(client)
        _, seen = await shell(client, sandbox, line)
        assert seen == ""
        await client.call("sandbox.stop", sandbox=sandbox)


async def test_a_flood_is_cut_and_counted(node: NodeProcess) -> None:
    async with wire_client(node.socket) as client:
        sandbox = await create(client)
        limit = {"head": 1000, "tail": 1000}
        answer, output = await client.run(sandbox, "head", "-c", "50000000", "/dev/zero", limit=limit)
        assert answer["stdout"] == {"total": 50_000_000, "head": 1000, "tail": 1000}
        assert len(output) == 2000
        await client.call("sandbox.stop", sandbox=sandbox)


async def test_a_burst_of_creates(node: NodeProcess) -> None:
    async with wire_client(node.socket) as client:
        creating = [client.start("sandbox.create", spec={"image": "tiny:1"}) for _ in range(40)]
        ids = [(await call.answer())["id"] for call in creating]
        assert len(set(ids)) == 40
        for sandbox in ids:
            assert (await client.run(sandbox, "hostname"))[1] == f"{sandbox}\n".encode()
        stopping = [client.start("sandbox.stop", sandbox=i) for i in ids]
        assert {(await call.answer())["state"] for call in stopping} == {"stopped"}


def test_a_second_server_is_told_who_serves(node: NodeProcess) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "dsec", "serve"],
        env=node.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert second.returncode != 0
    assert node.process is not None
    assert str(node.process.pid) in second.stdout + second.stderr
