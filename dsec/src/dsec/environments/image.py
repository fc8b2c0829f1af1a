"""The base image of the host's own distribution: what everything stands on that names no image."""

from __future__ import annotations

import platform

import msgspec

from libdsec.protocol.errors import InvalidArgumentError


class HostImage(msgspec.Struct, frozen=True):
    ref: str
    """`debian:12`."""
    source: str
    """What it is built from: `release:bookworm`."""
    packages: tuple[str, ...] = ("python3",)
    """Beside the minimal set: the first thing an agent reaches for."""


def host_image() -> HostImage:
    """:raises InvalidArgumentError: the host is neither Debian nor Ubuntu, or does not say which release."""
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        system = {}
    name, version, code = (system.get(key, "") for key in ("ID", "VERSION_ID", "VERSION_CODENAME"))
    if name not in ("debian", "ubuntu") or not code:
        host = system.get("PRETTY_NAME", "this host")
        raise InvalidArgumentError(
            f"cannot choose an image for {host}, which is no release of Debian or Ubuntu: build one with "
            "`dsec image build NAME:TAG --from SOURCE`, and name it with --image",
            field="image",
        )
    return HostImage(f"{name}:{version or code}", f"release:{code}")
