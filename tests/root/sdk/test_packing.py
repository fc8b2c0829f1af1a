"""Sandboxes that become images, on the real thing: what the new sandbox sees is what the old one saw."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from packed_trees import DESCRIBE, MAKE, UNPACK

from libdsec import DSecClient as AsyncClient
from libdsec.errors import AlreadyExistsError, InvalidArgumentError, UnsupportedOperationError
from libdsec.protocol.errors import SandboxFailedError, SandboxStateError
from libdsec.protocol.images import PackedDiff, ScrubRule
from libdsec.sync import DSecClient, Sandbox

pytestmark = pytest.mark.needs("root", "linux", "erofs", "overlay", "aether", "mmdebstrap")

Create = Callable[..., Sandbox]
Pack = Callable[..., PackedDiff]
_numbers = itertools.count()


@pytest.fixture
def pack(client: DSecClient, create: Create) -> Iterator[Pack]:
    """Packs under a name of its own, and removes the image when the sandboxes that were made of it are gone."""
    made: list[str] = []

    def pack(sandbox: Sandbox, kind: str = "workspace", **options: object) -> PackedDiff:
        ref = f"packed:{next(_numbers)}"
        packed = sandbox.pack_diff(ref, kind, **options)
        made.append(ref)
        return packed

    yield pack
    for info in client.list():
        if {info.spec.workspace, info.spec.image, *info.spec.toolkits} & set(made):
            client.stop(info.id)
    for ref in made:
        client.remove_image(ref)


def python(sandbox: Sandbox, program: str, *arguments: str) -> str:
    result = sandbox.run(["python3", "-c", program, *arguments], timeout=60)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def described(sandbox: Sandbox) -> list[str]:
    sandbox.run(["sh", "-c", "cat >/tmp/describe.py"], stdin=DESCRIBE.encode())
    sandbox.run_shell("PYTHONDONTWRITEBYTECODE=1 python3 /tmp/describe.py >/tmp/described").check()
    return sandbox.files.read("/tmp/described").decode().splitlines()


def test_a_sandbox_of_what_was_packed_sees_what_was_there(create: Create, pack: Pack, image: str) -> None:
    sandbox = create()
    python(sandbox, MAKE)
    expected = described(sandbox)
    for kind, layers, option in (("workspace", 1, "workspace"), ("base", 2, "container_image")):
        packed = pack(sandbox, kind, rules=[ScrubRule("srv", keep=True)])
        assert (packed.image.kind, packed.image.parent, len(packed.image.layers)) == (kind, image, layers)
        seen = described(create(**{option: packed.image.ref}))
        assert [line for line in seen if line not in set(expected)] == []
        assert [line for line in expected if line not in set(seen)] == []


def test_one_packed_over_the_other_is_the_last_one(create: Create, pack: Pack, client: DSecClient) -> None:
    first = create()
    first.run_shell("mkdir /srv/a; echo 1 >/srv/a/1; echo 1 >/srv/a/2; echo 1 >/srv/b").check()
    one = pack(first)
    second = create(workspace=one.image.ref)
    second.run_shell("rm /srv/a/1; echo 2 >/srv/a/2; rm /srv/b; mkdir /srv/b; echo 2 >/srv/b/2").check()
    two = pack(second)
    assert two.image.parent == one.image.ref
    assert two.image.layers == (*one.image.layers, two.layer)
    third = create(workspace=two.image.ref)
    assert third.run_shell("cd /srv; find . | sort; cat a/2 b/2").stdout.split() == [
        *(".", "./a", "./a/2", "./b", "./b/2"),
        *("2", "2"),
    ]
    assert list(third.diff()) == []
    empty = pack(third)
    assert empty.image.layers == two.image.layers


def test_it_is_of_one_moment_while_an_archive_is_unpacked(create: Create, pack: Pack) -> None:
    sandbox = create()
    with sandbox.exec_stream(["python3", "-c", UNPACK, "8000"]) as process:
        assert next(iter(process.stdout)) is not None
        packed = [pack(sandbox) for _ in range(3)]
        assert process.wait().exit_code == 0
    cuts = []
    for one in packed:
        view = create(workspace=one.image.ref)
        listed = view.run_shell("cd /srv/unpacked && stat -c '%n %s' * && sha256sum *").stdout.splitlines()
        sizes = dict(line.split() for line in listed if len(line.split()[0]) == 6)
        whole = [name for name, size in sizes.items() if size == "12000"]
        assert sorted(sizes) == [f"{number:06}" for number in range(len(sizes))]
        assert whole == sorted(sizes)[: len(whole)]
        assert len(sizes) - len(whole) <= 1, "one file at most is being written"
        assert python(view, _CHECK, str(len(whole))) == ""
        cuts.append(len(sizes))
    assert cuts == sorted(cuts)
    assert sandbox.run_shell("ls /srv/unpacked | wc -l").stdout == "8000\n"


_CHECK = r"""
import sys
for number in range(int(sys.argv[1])):
    with open(f"/srv/unpacked/{number:06}", "rb") as file:
        assert file.read() == b"%06d" % number * 2000, number
"""


def test_a_paused_one_stays_paused(create: Create, pack: Pack) -> None:
    sandbox = create()
    sandbox.run_shell("echo before >/srv/x; (while :; do echo >>/srv/y; sleep 0.01; done) >/dev/null 2>&1 &").check()
    sandbox.pause()
    packed = pack(sandbox)
    assert sandbox.info().state == "paused"
    assert [change.path for change in sandbox.diff()] == ["/srv/x", "/srv/y"]
    assert sandbox.info().state == "paused"
    assert packed.layer.files == 2
    before = sandbox.run_shell("wc -l </srv/y").stdout
    assert create(workspace=packed.image.ref).run_shell("cat /srv/x; wc -l </srv/y").stdout.splitlines()[0] == "before"
    assert int(before) > 0


def test_calls_meanwhile_wait_and_timeouts_stand_still(create: Create, pack: Pack, url: str) -> None:
    sandbox = create()
    python(sandbox, "import os\nfor n in range(20000): open(f'/srv/{n}', 'w').write(str(n))")

    async def both() -> None:
        async with AsyncClient(url) as client:
            handle = client.sandbox(sandbox.id)
            packing = asyncio.ensure_future(handle.pack_diff("packed:many"))
            states = set()
            while not packing.done():
                states.add((await handle.info()).state)
                result = await handle.run(["true"], timeout=5)
                assert result.exit_code == 0
            assert states <= {"running", "pausing"}
            packed = await packing
            assert packed.layer.files == 20_000
            assert packed.frozen_ms > 0
            await client.remove_image("packed:many")

    asyncio.run(both())


def test_what_is_refused_is_refused_before_anything_is_done(create: Create, pack: Pack, client: DSecClient) -> None:
    sandbox = create()
    sandbox.run_shell("echo >/srv/x").check()
    taken = pack(sandbox).image.ref
    for error, ref, options in (
        (AlreadyExistsError, taken, {}),
        (InvalidArgumentError, "no tag", {}),
        (InvalidArgumentError, "packed:bad", {"rules": [ScrubRule("/a")]}),
        (UnsupportedOperationError, "packed:bad", {"publish": True}),
    ):
        with pytest.raises(error):
            sandbox.pack_diff(ref, **options)
    assert sandbox.info().state == "running"
    assert "packed:bad" not in [info.ref for info in client.images()]
    sandbox.stop()
    with pytest.raises(SandboxStateError):
        sandbox.pack_diff("packed:bad")
    with pytest.raises(SandboxStateError):
        list(sandbox.diff())


def test_a_step_said_again_is_the_same_one(create: Create, client: DSecClient) -> None:
    sandbox = create()
    sandbox.run_shell("echo >/srv/x").check()
    first = sandbox.pack_diff("packed:key", key="pack")
    assert sandbox.pack_diff("packed:key", key="pack") == first
    assert client.sandbox(sandbox.id).pack_diff("packed:key", key="pack") == first
    client.remove_image("packed:key")


def _wait_until_it_stands(sandbox: Sandbox, over: Callable[[], bool]) -> None:
    """Until the pack under way is reading what it has written, which takes it a while."""
    while sandbox.info().state != "pausing":
        assert not over()


def test_one_that_is_stopped_meanwhile_is_not_packed(create: Create, client: DSecClient) -> None:
    sandbox = create()
    sandbox.run_shell("head -c 300000000 /dev/urandom >/srv/large").check()
    with ThreadPoolExecutor(1) as thread:
        packing = thread.submit(sandbox.pack_diff, "packed:stopped")
        _wait_until_it_stands(sandbox, packing.done)
        client.stop(sandbox.id)
        with pytest.raises((SandboxFailedError, SandboxStateError)):
            packing.result()
    assert sandbox.info().state == "stopped"
    assert "packed:stopped" not in [info.ref for info in client.images()]


def test_a_client_that_is_killed_has_it_packed_all_the_same(create: Create, client: DSecClient, url: str) -> None:
    sandbox = create()
    sandbox.run_shell("head -c 300000000 /dev/urandom >/srv/large").check()
    program = (
        "import sys\nfrom libdsec.sync import DSecClient\n"
        "with DSecClient(sys.argv[1]) as client:\n"
        "    client.sandbox(sys.argv[2]).pack_diff('packed:killed')\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, url, sandbox.id]) as process:
        _wait_until_it_stands(sandbox, lambda: process.poll() is not None)
        process.kill()
    assert process.returncode == -9
    while "packed:killed" not in [info.ref for info in client.images()]:
        threading.Event().wait(0.02)
    assert sandbox.run_shell("wc -c </srv/large").stdout == "300000000\n"
    assert sandbox.info().state == "running"
    client.remove_image("packed:killed")


def test_what_changes_a_toolkit_is_told(create: Create, pack: Pack) -> None:
    first = create()
    first.run_shell("mkdir -p /opt/tool; echo 1 >/opt/tool/a; echo 1 >/opt/tool/b; echo 1 >/opt/tool/c").check()
    toolkit = pack(first, "toolkit")
    second = create(toolkits=[toolkit.image.ref])
    second.run_shell("echo 2 >/opt/tool/a; rm /opt/tool/b; echo 2 >/opt/tool/new").check()
    packed = pack(second)
    assert packed.in_toolkits == ("/opt/tool/a", "/opt/tool/b")
    third = create(workspace=packed.image.ref, toolkits=[toolkit.image.ref])
    assert third.run_shell("cd /opt/tool; cat a; ls").stdout.split() == ["1", "a", "b", "c", "new"]


def test_residue_is_left_out_and_told(create: Create, pack: Pack) -> None:
    sandbox = create()
    sandbox.run_shell(
        "mkdir -p /root/.ssh /root/.cache/pip/http /var/log/app; echo k >/root/.ssh/id_rsa; echo c >/root/.ssh/config; "
        "echo >/root/.cache/pip/http/x; echo ls >/root/.bash_history; echo >/var/log/app/a.log; echo >/tmp/t; "
        "mkdir -p /tmp/keep; echo >/tmp/keep/x; echo >/srv/x"
    ).check()
    packed = pack(sandbox, rules=[ScrubRule("tmp/keep", keep=True), ScrubRule("srv/*", "not wanted")])
    rows = {row.path: row.why for row in packed.scrubbed}
    assert rows.keys() == {
        *("/root/.ssh/id_rsa", "/root/.cache/pip", "/root/.bash_history", "/var/log/app/a.log", "/tmp/t", "/srv/x")
    }
    assert rows["/srv/x"] == "not wanted"
    found = create(workspace=packed.image.ref).run_shell("find /root /var/log/app /tmp /srv")
    assert {"/root/.ssh/config", "/tmp/keep/x", "/var/log/app"} <= set(found.stdout.split())
    assert not rows.keys() & set(found.stdout.split())
    assert pack(sandbox, scrub=False).scrubbed == ()


def test_the_command_packs_and_shows(
    create: Create, client: DSecClient, dsec: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    sandbox = create()
    sandbox.run_shell("echo >/srv/x; rm /etc/issue; echo >/tmp/t").check()
    assert dsec("diff", sandbox.id).stdout == "D /etc/issue\nA /srv/x (1 B)\nA /tmp/t (1 B)\n"
    done = dsec("pack", sandbox.id, "packed:cli", "--scrub", "/srv/*", "--keep", "tmp/t")
    assert done.returncode == 0, done.stderr
    assert "/srv/x  1        1 B   asked for" in done.stdout
    client.remove_image("packed:cli")
