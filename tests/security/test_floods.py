"""Output that never ends, in every way a command can print (kind 28)."""

from __future__ import annotations

from pathlib import Path

import pytest

from libdsec.sync import DSecClient, Sandbox

pytestmark = pytest.mark.needs("root", "erofs", "overlay", "aether", "mmdebstrap")

MIB = 1 << 20


def resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))


def test_one_line_of_a_gigabyte(client: DSecClient, sandbox: Sandbox) -> None:
    server = client.server_info().pid
    before = resident(server)
    result = sandbox.run(["head", "-c", "1000000000", "/dev/zero"], timeout=60)
    assert (result.exit_code, result.stdout_total, result.truncated) == (0, 1_000_000_000, True)
    assert resident(server) - before < 32 * MIB


def test_a_terminal_that_is_flooded(client: DSecClient, sandbox: Sandbox) -> None:
    server = client.server_info().pid
    before = resident(server)
    with sandbox.exec_stream(["yes"], pty=True, timeout=1) as process:
        total = sum(len(piece) for piece in process.stdout)
        assert process.wait().timed_out
    assert total > 0
    assert resident(server) - before < 32 * MIB


def test_a_storm_of_changes_under_a_watch_that_nobody_reads(client: DSecClient, sandbox: Sandbox) -> None:
    server = client.server_info().pid
    before = resident(server)
    name = "f'/tmp/{i}' + 'n' * 200"
    churn = f"import os\nfor i in range(20000): open({name}, 'w').close(); os.remove({name})"
    with sandbox.files.watch("/tmp", recursive=True):
        assert sandbox.run(["python3", "-c", churn], timeout=60).ok
        assert sandbox.run(["true"]).ok
    assert resident(server) - before < 32 * MIB


def test_what_is_printed_after_the_end_is_nobodys(sandbox: Sandbox) -> None:
    result = sandbox.run_shell("(sleep 0.2; echo late) & echo early")
    assert result.stdout == "early\n"
    assert sandbox.run_shell("sleep 0.3; echo mine").stdout == "mine\n"
