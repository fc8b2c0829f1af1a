"""A release of Debian or Ubuntu as a tar stream: mmdebstrap, which unpacks packages into a temporary tree and writes
it out; the layer is built from that pipe while it is written.

mmdebstrap runs in pid and mount namespaces of its own (`unshare`), so that its end, however it comes, ends every
process that it started and every mount that it made; the kernel kills it when this process dies. Its temporary tree
lies in the build's directory, which the store removes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import IO

from libdsec.protocol.errors import InvalidArgumentError, UnsupportedOperationError

from .apt import AptSource

_RELEASE = re.compile(r"[a-z][a-z0-9.-]{0,63}")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(?::[a-z0-9]+)?")
_KEPT_OUTPUT = 16 * 1024
"""Bytes of what mmdebstrap says that are kept, the last ones."""
_IMAGE_KEYRINGS = "/usr/share/keyrings/"
"""Keys that lie here come with packages of the release itself."""
_HOSTS = "127.0.0.1 localhost\\n::1 localhost ip6-localhost ip6-loopback\\n"
_HOOKS = (
    f"printf '{_HOSTS}' > \"$1/etc/hosts\"",
    # what differs from one build to the next and says nothing about the image
    'rm -f "$1/var/cache/ldconfig/aux-cache" "$1/var/log/apt/"* "$1/var/log/dpkg.log" "$1/var/log/alternatives.log"',
    'rm -f "$1/var/log/bootstrap.log" "$1/etc/resolv.conf" "$1/etc/hostname" "$1/var/lib/dbus/machine-id"',
)
_END_TIMEOUT_S = 30


class ReleaseStream:
    """The tar of a release being made. `file` is to be read to its end; then `finish` says how it went. Leaving the
    `with` block earlier kills everything."""

    def __init__(
        self, release: str, sources: Sequence[AptSource], packages: Sequence[str], directory: str, epoch: int
    ) -> None:
        _check(release, packages)
        self._release = release
        self._command = _command(release, sources, packages, directory)
        self._environment = _environment(directory, epoch)
        self._process: subprocess.Popen[bytes] | None = None
        self._said = bytearray()
        self._listener: threading.Thread | None = None

    def __enter__(self) -> ReleaseStream:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, name="dsec-mmdebstrap", daemon=True)
        self._listener.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        process = self._running()
        if process.poll() is None:
            # `unshare --kill-child` passes it on to the first process of the namespace, and so to all
            process.kill()
        process.wait(_END_TIMEOUT_S)
        assert process.stdout is not None
        assert self._listener is not None
        process.stdout.close()
        self._listener.join(_END_TIMEOUT_S)

    @property
    def file(self) -> IO[bytes]:
        stdout = self._running().stdout
        assert stdout is not None
        return stdout

    def kill(self) -> None:
        """End it from another thread; the reader sees the end of the stream."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def failure(self) -> InvalidArgumentError | None:
        """After the stream's end: what went wrong, None when nothing."""
        process = self._running()
        deadline = time.monotonic() + _END_TIMEOUT_S
        assert self._listener is not None
        try:
            status = process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait(_END_TIMEOUT_S)
        self._listener.join(max(0.0, deadline - time.monotonic()))
        if status == 0:
            return None
        said = bytes(self._said).decode("utf-8", "replace").strip()
        telling = [line for line in said.splitlines() if line.startswith(("E:", "Err", "W:"))] or said.splitlines()
        return InvalidArgumentError(
            f"cannot build release {self._release}: mmdebstrap ended with {status}: {' | '.join(telling[-6:])[:2000]}",
            release=self._release,
            status=status,
            output=said[-4000:],
        )

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the release stream is used outside its with block")
        return self._process

    def _listen(self) -> None:
        process = self._running()
        assert process.stderr is not None
        with process.stderr as stream:
            while part := os.read(stream.fileno(), 8192):
                self._said += part
                del self._said[:-_KEPT_OUTPUT]


def _check(release: str, packages: Sequence[str]) -> None:
    if not _RELEASE.fullmatch(release):
        raise InvalidArgumentError(f"cannot build release {release[:80]!r}: not a release's name", field="source")
    for package in packages:
        if not _PACKAGE.fullmatch(package):
            raise InvalidArgumentError(f"cannot install {package[:80]!r}: not a package's name", field="packages")
    for program, where in (("mmdebstrap", "mmdebstrap"), ("unshare", "util-linux"), ("setpriv", "util-linux")):
        if shutil.which(program) is None:
            raise UnsupportedOperationError(
                f"cannot build a release: {program} is not installed; "
                f"install {where}, or build from a directory or a tar",
                program=program,
            )
    if os.geteuid() != 0:
        raise UnsupportedOperationError("cannot build a release: it needs root")


def _command(release: str, sources: Sequence[AptSource], packages: Sequence[str], directory: str) -> list[str]:
    wanted = list(packages)
    if any(uri.startswith("https:") for source in sources for uri in source.uris):
        # without it the image could not reach its own mirror
        wanted.append("ca-certificates")
    command = ["setpriv", "--pdeathsig", "KILL"]
    command += ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command += ["mmdebstrap", "--mode=root", "--variant=minbase", "--format=tar"]
    if wanted:
        command.append(f"--include={','.join(dict.fromkeys(wanted))}")
    for source in sources:
        if (key := source.keyring) is not None and not key.startswith(_IMAGE_KEYRINGS):
            command.append(f'--setup-hook=mkdir -p "$1{os.path.dirname(key)}" && cp \'{key}\' "$1{key}"')
    command += [f"--customize-hook={hook}" for hook in _HOOKS]
    listing = os.path.join(directory, f"{release}.sources")
    with open(listing, "w", encoding="utf-8") as file:
        file.write("\n".join(source.stanza() for source in sources))
    return [*command, release, "-", listing]


def _environment(directory: str, epoch: int) -> dict[str, str]:
    temporary = os.path.join(directory, "tmp")
    os.mkdir(temporary, 0o755)
    os.chmod(directory, 0o755)
    passed = {
        k: v for k, v in os.environ.items() if k.lower() in ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
    }
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C.UTF-8",
        "HOME": "/root",
        "TMPDIR": temporary,
        "DEBIAN_FRONTEND": "noninteractive",
        "SOURCE_DATE_EPOCH": str(epoch),
        **passed,
    }
