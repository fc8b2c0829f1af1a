"""A release of Debian or Ubuntu as a tar stream: mmdebstrap, which unpacks packages into a temporary tree and writes
it out; the layer is built from that pipe while it is written.

mmdebstrap runs in pid and mount namespaces of its own (`unshare`), so that its end, however it comes, ends every
process that it started and every mount that it made; the kernel kills it when this process dies. Its temporary tree
lies in the build's directory, which the store removes.
"""

from __future__ import annotations

import datetime
import os
import re
import select
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any

from libdsec.protocol.errors import (
    CapacityError,
    DSecError,
    InvalidArgumentError,
    UnavailableError,
    UnsupportedOperationError,
)

from .apt import AptSource

_RELEASE = re.compile(r"[a-z][a-z0-9.-]{0,63}")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(?::[a-z0-9]+)?")
_MAX_PACKAGES = 2000
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
    'rm -f "$1/var/cache/debconf/"*-old "$1/var/lib/dpkg/"*-old',
)
_TICK_S = 0.5
_QUIET_S = 1800.0
"""mmdebstrap without a byte of output for so long is taken for stuck."""
_END_TIMEOUT_S = 30.0


class ReleaseStream:
    """The tar of a release being made: a binary file object to be read to its end, after which `failure` says how it
    went. Leaving the `with` block earlier kills everything.

    While there is nothing to read, `tick` is called about twice a second; what it raises comes out of the read.
    """

    def __init__(
        self,
        release: str,
        sources: Sequence[AptSource],
        packages: Sequence[str],
        directory: str,
        tick: Callable[[], None],
    ) -> None:
        _check(release, packages)
        self._release = release
        self._command = _command(release, sources, packages, directory)
        self._environment = _environment(directory)
        self._tick = tick
        self._said = bytearray()
        self.ended = False
        """Whether the stream was read to its end."""

    def __enter__(self) -> ReleaseStream:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._out, self._err = self._process.stdout, self._process.stderr
        self._listener = threading.Thread(target=self._listen, name="dsec-mmdebstrap", daemon=True)
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            # `unshare --kill-child` passes it on to the first process of the namespace, and so to all
            self._process.kill()
        self._process.wait(_END_TIMEOUT_S)
        self._out.close()
        self._listener.join(_END_TIMEOUT_S)

    def read(self, size: int, /) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self.readinto(buffer)])

    def readinto(self, buffer: Any, /) -> int:
        self._wait_for_bytes()
        count = os.readv(self._out.fileno(), [buffer])
        self.ended = count == 0
        return count

    def failure(self) -> DSecError | None:
        """After the stream's end: what went wrong, None when nothing."""
        try:
            status = self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait(_END_TIMEOUT_S)
        if status == 0:
            return None
        self._listener.join(_END_TIMEOUT_S)
        said = bytes(self._said).decode("utf-8", "replace").strip()
        return _error(self._release, status, said)

    def _wait_for_bytes(self) -> None:
        poll = select.poll()
        poll.register(self._out.fileno(), select.POLLIN)
        for _ in range(round(_QUIET_S / _TICK_S)):
            if poll.poll(_TICK_S * 1000):
                return
            self._tick()
        raise UnavailableError(
            f"cannot build release {self._release}: mmdebstrap gave nothing for {_QUIET_S:g} s", release=self._release
        )

    def _listen(self) -> None:
        with self._err as stream:
            while part := os.read(stream.fileno(), 8192):
                self._said += part
                del self._said[:-_KEPT_OUTPUT]


def _error(release: str, status: int, said: str) -> DSecError:
    errors = [line[:300] for line in said.splitlines() if line.startswith("E:")]
    telling = errors[:3] or said.splitlines()[-4:]
    text = f"cannot build release {release}: {' | '.join(telling)[:2000]} (mmdebstrap ended with {status})"
    details = {"release": release, "status": status, "output": said[-4000:]}
    if "No space left on device" in said:
        return CapacityError(text, **details)
    if "Unable to locate package" in said or "does not have a Release file" in said:
        hint = "; name a release or a mirror that has it" if "Release file" in said else ""
        return InvalidArgumentError(text + hint, **details)
    return UnavailableError(text, **details)


def _check(release: str, packages: Sequence[str]) -> None:
    if not _RELEASE.fullmatch(release):
        raise InvalidArgumentError(f"cannot build release {release[:80]!r}: not a release's name", field="source")
    if len(packages) > _MAX_PACKAGES:
        raise InvalidArgumentError(
            f"cannot install {len(packages)} packages: name at most {_MAX_PACKAGES}", field="packages"
        )
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
    # the option stays in the image: there is nothing in a sandbox that a sync of every unpacked file could save
    command += ["mmdebstrap", "--mode=root", "--variant=minbase", "--format=tar", "--dpkgopt=force-unsafe-io"]
    if wanted:
        command.append(f"--include={','.join(dict.fromkeys(wanted))}")
    for number, key in enumerate(_foreign_keys(sources)):
        # hooks are lines of shell: the path, which is the host's own, goes through a link with a plain name
        link = os.path.join(directory, f"key{number}")
        os.symlink(key, link)
        command.append(f'--setup-hook=k=$(readlink {link}); mkdir -p "$1${{k%/*}}"; cp "$k" "$1$k"')
    command += [f"--customize-hook={hook}" for hook in _HOOKS]
    listing = os.path.join(directory, f"{release}.sources")
    with open(listing, "w", encoding="utf-8") as file:
        file.write("\n".join(source.stanza() for source in sources))
    return [*command, release, "-", listing]


def _foreign_keys(sources: Sequence[AptSource]) -> list[str]:
    keys = [source.keyring for source in sources]
    return [key for key in dict.fromkeys(keys) if key is not None and not key.startswith(_IMAGE_KEYRINGS)]


def _environment(directory: str) -> dict[str, str]:
    temporary = os.path.join(directory, "tmp")
    os.mkdir(temporary, 0o755)
    # apt fetches as a user of its own, who must be able to reach its directory
    os.chmod(directory, 0o755)
    proxies = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C.UTF-8",
        "HOME": "/root",
        "TMPDIR": temporary,
        "DEBIAN_FRONTEND": "noninteractive",
        "SOURCE_DATE_EPOCH": str(_epoch()),
        **{name: value for name, value in os.environ.items() if name.lower() in proxies},
    }


def _epoch() -> int:
    """Time of the files that the build itself makes: $SOURCE_DATE_EPOCH, else the start of the day (UTC)."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    if given.isdigit():
        return int(given)
    today = datetime.datetime.now(datetime.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return int(today.timestamp())
