"""An /etc/passwd made to hang, to exhaust or to lock out: who needs no entry is never locked out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from inside import Create

from libdsec.errors import CommandNotStartedError
from libdsec.sync import DSecClient, DSecContainerRunArgs, Sandbox

pytestmark = pytest.mark.needs("root", "erofs", "overlay", "aether", "mmdebstrap")

TRAPS = (
    "mkfifo /etc/passwd",
    "mkdir /etc/passwd",
    "ln -s passwd /etc/passwd",
    "ln -s /proc/self/mem /etc/passwd",
    "ln -s /proc/1/environ /etc/passwd",
    "ln -s /proc/kmsg /etc/passwd",
    "ln -s /dev/zero /etc/passwd",
    "ln -s /dev/tty /etc/passwd",
    "truncate -s 8T /etc/passwd",
    "head -c 20000000 /dev/zero | tr '\\0' : >/etc/passwd",
    "echo root:x:4294967295:0::/: >/etc/passwd",
)


@pytest.fixture(scope="module")
def trapped(client: DSecClient, node_environment: dict[str, str]) -> Iterator[Sandbox]:
    with client.run_container(DSecContainerRunArgs(container_image=node_environment["DSEC_IMAGE"])) as sandbox:
        yield sandbox


@pytest.mark.parametrize("trap", TRAPS)
def test_root_and_numbers_need_no_entry(trapped: Sandbox, trap: str) -> None:
    assert trapped.run_shell(f"rm -rf /etc/passwd; {trap}", user="0:0", timeout=30).ok
    assert trapped.run(["true"], user="0", timeout=30).ok
    assert trapped.run(["true"], user="1234:1234", timeout=30).ok
    assert trapped.files.as_user("0").stat("/").type == "directory"
    with pytest.raises(CommandNotStartedError, match="no such user"):
        trapped.run(["true"], user="nobody", timeout=30)


def test_no_id_beyond_the_range(create: Create) -> None:
    sandbox = create()
    sandbox.run_shell("echo 'evil:x:70000:0::/:' >>/etc/passwd")
    sandbox.run_shell("echo 'minus-one:x:4294967295:0::/:' >>/etc/passwd")
    # 4294967295 is -1 to setresuid(2), which then changes nothing: it was root
    for user in ("evil", "minus-one", "65536", "4294967295", "1:4294967295", "-1", "4294967296"):
        with pytest.raises(CommandNotStartedError, match="no such user"):
            sandbox.run(["true"], user=user)
