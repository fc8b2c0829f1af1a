"""Where this host gets its packages from: the sources of its apt configuration.

Both forms are read: `.sources` files (deb822) and one-line `.list` files. What an image is built from is always
written as deb822, which can say everything that either form can. No mirror is named here: they are the host's, or
the caller's.
"""

from __future__ import annotations

import glob
import os
import re
import subprocess
from dataclasses import dataclass, field, replace

from libdsec.protocol.errors import InvalidArgumentError, UnsupportedOperationError

_OPTION = re.compile(r"([A-Za-z-]+)=(\S+)")
_ONE_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s*(?P<components>.*)")
_REMOTE = ("http:", "https:", "file:", "copy:", "ftp:")
_FLAGS = {
    "signed-by": "Signed-By",
    "trusted": "Trusted",
    "arch": "Architectures",
    "check-valid-until": "Check-Valid-Until",
}
_KEPT = {"signed-by", "trusted", "check-valid-until", "check-date", "allow-insecure"}
"""Fields of a stanza that go over to the image's sources. Architectures do not: an image has its own."""
_COMPONENTS = {"debian": ("main",), "ubuntu": ("main", "universe")}
_TIMEOUT_S = 20


@dataclass(frozen=True)
class AptSource:
    """One stanza of binary packages."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    fields: dict[str, str] = field(default_factory=dict)
    """Lower-case name → value, of those that are kept; Signed-By may be a path, or a whole key."""

    def stanza(self) -> str:
        lines = [
            "Types: deb",
            f"URIs: {' '.join(self.uris)}",
            f"Suites: {' '.join(self.suites)}",
        ]
        if self.components:
            lines.append(f"Components: {' '.join(self.components)}")
        lines += [
            f"{'-'.join(p.capitalize() for p in name.split('-'))}: {value}" for name, value in self.fields.items()
        ]
        return "\n".join(lines) + "\n"

    @property
    def keyring(self) -> str | None:
        """Path of its key file, when it names one."""
        value = self.fields.get("signed-by", "")
        return value if value.startswith("/") else None


@dataclass(frozen=True)
class HostDistribution:
    """From os-release: `debian`, `bookworm`."""

    id: str
    codename: str


def host_distribution(path: str = "/etc/os-release") -> HostDistribution:
    """:raises UnsupportedOperationError: not a release of Debian or Ubuntu, or of something that is like them."""
    values = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                name, equals, value = line.strip().partition("=")
                if equals:
                    values[name] = value.strip("\"'")
    except OSError as error:
        raise UnsupportedOperationError(f"cannot tell the host's distribution: {path}: {error.strerror}") from None
    name, codename = values.get("ID", ""), values.get("VERSION_CODENAME", "")
    if not name or not codename or not {name, *values.get("ID_LIKE", "").split()} & {"debian", "ubuntu"}:
        raise UnsupportedOperationError(
            f"cannot build an image of the host's own distribution: {name or 'it'} is not a release of Debian or "
            "Ubuntu; name a release and a mirror, or build from a directory or a tar",
            distribution=name,
        )
    return HostDistribution(name, codename)


def host_sources(directory: str | None = None) -> list[AptSource]:
    """Every enabled source of binary packages, `sources.list` first."""
    directory = directory or _apt_directory()
    paths = [os.path.join(directory, "sources.list")]
    paths += sorted(glob.glob(os.path.join(glob.escape(directory), "sources.list.d", "*.list")))
    paths += sorted(glob.glob(os.path.join(glob.escape(directory), "sources.list.d", "*.sources")))
    found: list[AptSource] = []
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UnsupportedOperationError(f"cannot read {path}: {error.strerror}", path=path) from None
        found += _deb822(text) if path.endswith(".sources") else _one_line(text)
    return [usable for source in found if (usable := _resolve(source)) is not None]


def sources_for(
    release: str,
    mirror: str | None,
    host: HostDistribution | None,
    given: list[AptSource],
    distro_info: str = "/usr/share/distro-info",
) -> list[AptSource]:
    """The stanzas from which `release` is built.

    With a mirror: that mirror alone, with the components and key of the host's main source, or of the release's own
    distribution when that is known to be another. Else the host's sources with the host's release replaced by the
    asked one in each suite (`bookworm-updates` → `trixie-updates`); those of others (a vendor's own repository) are
    left out.
    :raises UnsupportedOperationError: the host's configuration has none that could serve.
    """
    vendor = _vendor(release, distro_info)
    foreign = vendor is not None and host is not None and vendor != host.id
    usual = [source for source in given if host is not None and any(_is_of(s, host.codename) for s in source.suites)]
    if mirror is not None:
        if not mirror.startswith(_REMOTE) or not mirror.isprintable() or " " in mirror:
            raise InvalidArgumentError(
                f"cannot use mirror {mirror[:200]!r}: it must be a URL (http, https, file)", field="mirror"
            )
        if foreign or not usual:
            return [AptSource((mirror,), (release,), _COMPONENTS.get(vendor or "", ("main",)), _vendor_key(vendor))]
        return [replace(usual[0], uris=(mirror,), suites=(release,))]
    if foreign or not usual or host is None:
        whose = f"it is one of {vendor}" if foreign else "the host's apt configuration has no source of its own release"
        raise UnsupportedOperationError(f"cannot build release {release}: {whose}; give a mirror", release=release)
    return [replace(source, suites=_suites_for(release, host, source)) for source in usual]


def _suites_for(release: str, host: HostDistribution, source: AptSource) -> tuple[str, ...]:
    return tuple(release + suite.removeprefix(host.codename) for suite in source.suites if _is_of(suite, host.codename))


def _vendor(release: str, distro_info: str) -> str | None:
    """Whose release it is, as far as this host's tables of releases know."""
    for vendor in ("debian", "ubuntu"):
        try:
            with open(os.path.join(distro_info, f"{vendor}.csv"), encoding="utf-8", errors="replace") as file:
                # version, codename, series, dates
                if any(fields[2] == release for line in file if len(fields := line.split(",")) > 2):
                    return vendor
        except OSError:
            continue
    return None


def _vendor_key(vendor: str | None) -> dict[str, str]:
    path = f"/usr/share/keyrings/{vendor}-archive-keyring.gpg"
    return {"signed-by": path} if vendor is not None and os.path.exists(path) else {}


def _is_of(suite: str, codename: str) -> bool:
    """`bookworm`, `bookworm-updates`, `bookworm/updates`, but not backports nor what is only proposed."""
    tail = suite.removeprefix(codename)
    return suite.startswith(codename) and tail in ("", "-updates", "-security", "/updates")


def _apt_directory() -> str:
    """apt's own answer, since Dir::Etc can be elsewhere; the usual place where apt is not installed."""
    try:
        done = subprocess.run(
            ["apt-config", "shell", "DIRECTORY", "Dir::Etc/d"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "/etc/apt"
    match = re.search(r"DIRECTORY='([^']+)'", done.stdout)
    return match[1].rstrip("/") if match else "/etc/apt"


def _one_line(text: str) -> list[AptSource]:
    found = []
    for line in text.splitlines():
        match = _ONE_LINE.fullmatch(line.partition("#")[0].strip())
        if match is None:
            continue
        options = {_FLAGS.get(k.lower(), k).lower(): v for k, v in _OPTION.findall(match["options"] or "")}
        fields = {name: value for name, value in options.items() if name in _KEPT}
        found.append(AptSource((match["uri"],), (match["suite"],), tuple(match["components"].split()), fields))
    return found


def _deb822(text: str) -> list[AptSource]:
    found = []
    for fields in _stanzas(text):
        if fields.get("enabled", "yes").strip().lower() in ("no", "false", "0", "off"):
            continue
        if "deb" not in fields.get("types", "").split():
            continue
        kept = {name: value for name, value in fields.items() if name in _KEPT}
        words = {name: tuple(fields.get(name, "").split()) for name in ("uris", "suites", "components")}
        found.append(AptSource(words["uris"], words["suites"], words["components"], kept))
    return found


def _stanzas(text: str) -> list[dict[str, str]]:
    """Fields by lower-case name; a value of several lines keeps its line breaks, since a key may be one."""
    stanzas: list[dict[str, str]] = [{}]
    name = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not line.strip():
            stanzas.append({})
            name = ""
        elif line[0] in " \t":
            if name:
                stanzas[-1][name] += "\n" + line
        else:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            stanzas[-1][name] = value.strip()
    return [stanza for stanza in stanzas if stanza]


def _resolve(source: AptSource) -> AptSource | None:
    """Lists of mirrors (`mirror+file:`) become the mirrors in them; what an image build cannot reach is left out."""
    uris: list[str] = []
    for uri in source.uris:
        if uri.startswith("mirror+file:"):
            uris += _mirror_list(uri.removeprefix("mirror+file:"))
        elif uri.startswith(_REMOTE):
            uris.append(uri)
    return replace(source, uris=tuple(uris[:1])) if uris else None


def _mirror_list(path: str) -> list[str]:
    path = "/" + path.lstrip("/")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.split()[0] for line in file if line.strip() and not line.startswith("#")]
    except OSError as error:
        raise UnsupportedOperationError(f"cannot read the mirrors in {path}: {error.strerror}", path=path) from None
    return [uri for uri in lines if uri.startswith(_REMOTE)]
