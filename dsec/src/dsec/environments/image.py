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


def host_image() -> HostImage:
    """:raises InvalidArgumentError: the host is neither Debian nor Ubuntu, or does not say which release."""
    system = platform.freedesktop_os_release()
    name, version, code = (system.get(key, "") for key in ("ID", "VERSION_ID", "VERSION_CODENAME"))
    if not (name in ("debian", "ubuntu") and version and code):
        host = system.get("PRETTY_NAME", "this host")
        raise InvalidArgumentError(f"cannot choose an image for {host}: name one with --image", field="image")
    return HostImage(f"{name}:{version}", f"release:{code}")
