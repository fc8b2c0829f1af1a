"""COPY out of another sandbox, which goes whatever comes of it."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsec.dockerfile.copying import _followed, from_sandbox
from dsec.dockerfile.plan import CopyStep
from libdsec.protocol.errors import InvalidArgumentError, PathNotFoundError
from libdsec.protocol.files import FileInfo, FileType


class Files:
    """Of a sandbox with nothing in it, or with what `kind` says at every path."""

    def __init__(self, kind: FileType | None = None) -> None:
        self._kind = kind

    async def stat(self, path: str, *, follow: bool = False) -> FileInfo:
        if self._kind is None:
            raise PathNotFoundError(f"there is no {path}", path=path)
        return FileInfo(path, self._kind, 0, 0o644, 0, 0, 0)

    async def read(self, path: str, *, limit: int) -> bytes:
        assert self._kind in (None, "file"), "nobody writes to it: it would wait for ever"
        raise PathNotFoundError(f"cannot read {path}: there is none", path=path)


class Other:
    """The sandbox of another stage, which runs until it is left."""

    def __init__(self) -> None:
        self.runs = True

    async def __aenter__(self) -> Any:
        return SimpleNamespace(files=Files())

    async def __aexit__(self, *_: object) -> None:
        self.runs = False


async def test_an_owner_that_is_nobody_leaves_no_sandbox() -> None:
    step = CopyStep(3, "COPY", (), ("/a",), "/b", 0, None, "nobody-here")
    other, sandbox = Other(), SimpleNamespace(files=Files())
    with pytest.raises(InvalidArgumentError, match=r"line 3 .*nobody-here"):
        await from_sandbox(sandbox, step, other)  # type: ignore[arg-type]
    assert not other.runs


@pytest.mark.parametrize("kind", ["fifo", "socket", "directory", "char"])
async def test_accounts_that_are_no_file_name_nobody(kind: FileType) -> None:
    step = CopyStep(3, "COPY", (), ("/a",), "/b", 0, None, "nobody-here")
    with pytest.raises(InvalidArgumentError, match=r"line 3 .*nobody-here"):
        await from_sandbox(SimpleNamespace(files=Files(kind)), step, Other())  # type: ignore[arg-type]


class Linked:
    """Files that are looked at as a kernel does below `root`: links on the way are followed, the last one is not."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def stat(self, path: str) -> FileInfo:
        above = Path(self._real(posixpath.dirname(path)))
        found = above / posixpath.basename(path)
        return self._look(found, path)

    def _look(self, found: Path, path: str) -> FileInfo:
        if found.is_symlink():
            return FileInfo(path, "symlink", 0, 0o777, 0, 0, 0, target=os.readlink(found))
        if not found.exists():
            raise PathNotFoundError(f"there is no {path}", path=path)
        return FileInfo(path, "directory" if found.is_dir() else "file", found.stat().st_size, 0o644, 0, 0, 0)

    def _real(self, path: str) -> str:
        """Of a directory; `/` is the root's own, for none of its links is absolute on the way to one."""
        return os.path.realpath(f"{self._root}/{path}")


@pytest.fixture
def linked(tmp_path: Path) -> Linked:
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "b" / "y").write_text("right")
    (tmp_path / "y").write_text("which is wrong")
    (tmp_path / "b" / "c" / "up").symlink_to("../y")
    (tmp_path / "b" / "c" / "above").symlink_to("..")
    (tmp_path / "b" / "c" / "far").symlink_to("../../../../y")
    (tmp_path / "b" / "self").symlink_to(".")
    (tmp_path / "a").symlink_to("b/c")
    (tmp_path / "root").symlink_to("/")
    (tmp_path / "absolute").symlink_to("/a/up")
    (tmp_path / "loop").symlink_to("pool")
    (tmp_path / "pool").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("b/none")
    return Linked(tmp_path)


@pytest.mark.parametrize(
    ("path", "real", "size"),
    [
        ("/y", "/y", 14),
        ("/b/c/up", "/b/y", 5),
        ("/a/up", "/b/y", 5),
        ("/absolute", "/b/y", 5),
        ("/a/far", "/y", 14),
        ("/a/above", "/b", None),
        ("/b/self", "/b", None),
        ("/root", "/", None),
    ],
)
async def test_a_link_leads_where_the_kernel_goes(linked: Any, path: str, real: str, size: int | None) -> None:
    """`..` is the directory above the one in which the link lies, by whatever path that was reached."""
    found, info = await _followed(linked, path, 3)
    assert (found, info.type) == (real, "directory" if size is None else "file")
    assert size is None or info.size == size


@pytest.mark.parametrize(
    ("path", "why"), [("/loop", "more than 40 links"), ("/nowhere", "no /b/none"), ("/x", "no /x")]
)
async def test_a_link_that_leads_nowhere_names_the_line(linked: Any, path: str, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"line 3 .*{why}"):
        await _followed(linked, path, 3)
