"""Debian's docker-registry, for as long as a test lasts."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

USER, PASSWORD = "tester", "tame-otter-9"
_HTPASSWD = USER + ":$2y$05$abcdefghijklmnopqrstuuFK2G5eiu4LSzhdHERbDShhVqNvM.SxW\n"
_CONFIG = """
version: 0.1
storage: {{filesystem: {{rootdirectory: "{root}/blobs"}}, delete: {{enabled: true}}}}
http: {{net: tcp, addr: "127.0.0.1:0"}}
log: {{level: info, formatter: text, accesslog: {{disabled: true}}}}
auth: {{htpasswd: {{realm: here, path: "{root}/users"}}}}
"""
_READY_S = 20.0


class Registry(NamedTuple):
    host: str
    log: Path

    def put(self, source: str, name: str) -> None:
        """An image from elsewhere, as skopeo names it."""
        command = ["skopeo", "copy", "-q", "--dest-tls-verify=false", f"--dest-creds={USER}:{PASSWORD}"]
        done = subprocess.run(
            [*command, source, f"docker://{self.host}/{name}"], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr


@contextmanager
def real_registry(directory: Path) -> Iterator[Registry]:
    """On loopback, with one user; what it keeps is kept in `directory`."""
    (directory / "users").write_text(_HTPASSWD)
    (directory / "config.yml").write_text(_CONFIG.format(root=directory))
    log = directory / "log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(directory / "config.yml")], stdout=output, stderr=output
        )
    try:
        yield Registry(_host(process, log), log)
    finally:
        process.kill()
        process.wait()


def _host(process: subprocess.Popen[bytes], log: Path) -> str:
    """It says which port it was given."""
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            if "listening on " in line:
                return line.partition("listening on ")[2].partition('"')[0].strip()
        time.sleep(0.05)
    raise AssertionError(f"the registry does not come up: {log.read_text()}")
