"""Commands that hang and commands that flood: kinds 20 and 28 of the faults that users of such platforms reported."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from libdsec import DSecClient as AsyncClient
from libdsec.sync import DSecClient, OutputLimit, Sandbox

pytestmark = pytest.mark.needs("root", "erofs", "overlay", "aether", "mmdebstrap")

MIB = 1 << 20


def resident(pid: int) -> int:
    """Bytes of memory a process holds."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"{pid} has no memory")


def test_stdin_that_is_never_closed(sandbox: Sandbox):
    with sandbox.exec_stream(["cat"], stdin=True, timeout=1) as process:
        process.stdin.write(b"partial")
        assert b"".join(process.stdout) == b"partial"
        assert process.wait().timed_out


def test_no_stdin_is_end_of_file_at_once(sandbox: Sandbox):
    assert sandbox.run(["cat"], timeout=20).stdout_bytes == b""


def test_a_background_process_that_keeps_stdout(sandbox: Sandbox):
    result = sandbox.run_shell("sleep 600 & echo started", timeout=60)
    assert (result.ended, result.exit_code, result.stdout) == ("exited", 0, "started\n")
    sandbox.run_shell("kill $(cat /proc/[0-9]*/stat | awk '$2 == \"(sleep)\" {print $1}')")


def test_much_output_without_a_newline(sandbox: Sandbox):
    result = sandbox.run_shell("head -c 200000000 /dev/zero | tr '\\0' x; printf end", timeout=60)
    assert (result.exit_code, result.stdout_total, result.truncated) == (0, 200_000_003, True)
    assert len(result.stdout_bytes) == MIB
    assert result.stdout_bytes.endswith(b"xend")


def test_output_that_is_no_utf8(sandbox: Sandbox):
    result = sandbox.run_shell(r"printf '\377\000\303(ok'")
    assert result.stdout_bytes == b"\xff\x00\xc3(ok"
    assert result.stdout.endswith("(ok")


def test_a_timeout_ends_all_that_was_started_and_keeps_what_was_printed(sandbox: Sandbox):
    script = "echo before; trap '' TERM; (setsid sh -c 'trap \"\" TERM; while :; do sleep 5432; done' &) ; sleep 5431"
    result = sandbox.run_shell(script, timeout=1)
    assert (result.ended, result.stdout) == ("timed_out", "before\n")
    assert not sandbox.run_shell("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep '[5]43[12]'").stdout


def test_a_flood_is_cut_and_counted_in_bounded_memory(client: DSecClient, sandbox: Sandbox):
    server = client.server_info().pid
    before = resident(server)
    result = sandbox.run(["yes"], timeout=3, limit=OutputLimit(1000, 1000))
    assert (result.ended, result.truncated, len(result.stdout_bytes)) == ("timed_out", True, 2000)
    assert result.stdout_total > 10 * MIB
    assert resident(server) - before < 32 * MIB


def test_a_detached_flood_fills_nothing(client: DSecClient, sandbox: Sandbox):
    server = client.server_info().pid
    before = resident(server)
    for _ in range(5):
        assert sandbox.run_shell("yes & (setsid yes &) ; echo left", timeout=30).exit_code == 0
    assert sandbox.run_shell("sleep 1").ok
    assert resident(server) - before < 32 * MIB
    sandbox.run_shell("kill -9 $(cat /proc/[0-9]*/stat | awk '$2 == \"(yes)\" {print $1}')")


def test_a_reader_that_stops_reading_stops_the_command(url: str, client: DSecClient, sandbox: Sandbox):
    async def main() -> None:
        server = client.server_info().pid
        before = resident(server)
        async with asyncio.timeout(60), AsyncClient(url) as own:
            process = await own.sandbox(sandbox.id).exec_stream(["yes"])
            first = await process.stdout.read()
            assert first.startswith(b"y\ny\n")
            await asyncio.sleep(1)  # nothing is read: the pipe must fill and `yes` wait
            assert (await own.sandbox(sandbox.id).run(["echo", "others go on"])).ok
            assert resident(server) - before < 16 * MIB
            total = len(first)
            while total < 10 * MIB:
                total += len(await process.stdout.read())
            process.kill()

    asyncio.run(main())


def test_many_floods_at_once(client: DSecClient, url: str, sandbox: Sandbox):
    async def main() -> None:
        async with asyncio.timeout(60), AsyncClient(url) as own:
            box = own.sandbox(sandbox.id)
            results = await asyncio.gather(*(box.run(["yes"], timeout=2) for _ in range(8)), box.run(["echo", "hi"]))
            assert [result.ended for result in results[:-1]] == ["timed_out"] * 8
            assert results[-1].stdout == "hi\n"

    server = client.server_info().pid
    before = resident(server)
    asyncio.run(main())
    assert resident(server) - before < 64 * MIB
