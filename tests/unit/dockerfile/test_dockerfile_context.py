"""What COPY may take of a directory, as digest and as tar; .dockerignore; tars on their way between stages."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.dockerfile import retar
from dsec.dockerfile.context import Context, Owner, take
from dsec.dockerfile.copying import choose
from dsec.dockerfile.patterns import Ignore, compiled
from dsec.dockerfile.plan import CopyStep
from libdsec.protocol.errors import ConflictError, InvalidArgumentError, WireError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "context"
    for name, content in {"a.txt": "a", "b.txt": "b", "src/x.py": "x", "src/deep/y.py": "y"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    (root / "link").symlink_to("src/x.py")
    (root / "src" / "inner").symlink_to("/nowhere")
    (root / "out").symlink_to(tmp_path)
    return root


def names(tree: Path, *sources: str, ignore: str = "") -> list[str]:
    return [name for _, name in take(Context(str(tree), Ignore(ignore)), sources, None)]


def digest(tree: Path, *sources: str) -> str:
    context = Context(str(tree), Ignore())
    return context.digest(take(context, sources, None))


def test_files_directories_and_wildcards(tree: Path) -> None:
    assert names(tree, "a.txt") == ["a.txt"]
    assert names(tree, "src") == ["deep", "deep/y.py", "inner", "x.py"]
    assert names(tree, "/src/deep/", "*.txt") == ["y.py", "a.txt", "b.txt"]
    assert names(tree, "s?c/[w-z].py") == ["x.py"]
    assert names(tree, "link") == ["link"]  # its contents, under its own name
    assert names(tree, ".", ignore="src\nout\nlink") == ["a.txt", "b.txt"]


@pytest.mark.parametrize("source", ["missing", "../x", "a/../../x", "*.none", "out", "src/inner", "["])
def test_what_is_not_there_or_leads_out(tree: Path, source: str) -> None:
    with pytest.raises(InvalidArgumentError):
        names(tree, source)


def test_what_is_left_out_says_why(tree: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="dockerignore"):
        names(tree, "a.txt", ignore="*.txt")


def test_a_digest_is_of_contents_names_and_modes_not_of_times(tree: Path) -> None:
    first = digest(tree, "src")
    os.utime(tree / "src" / "x.py", (1, 1))
    assert digest(tree, "src") == first
    (tree / "src" / "x.py").chmod(0o755)
    second = digest(tree, "src")
    (tree / "src" / "x.py").write_text("z")
    third = digest(tree, "src")
    (tree / "src" / "deep" / "y.py").rename(tree / "src" / "deep" / "z.py")
    fourth = digest(tree, "src")
    (tree / "src" / "inner").unlink()
    (tree / "src" / "inner").symlink_to("/elsewhere")
    assert len({first, second, third, fourth, digest(tree, "src")}) == 5


def test_the_tar(tree: Path) -> None:
    context = Context(str(tree), Ignore())
    taken = take(context, ["src"], None)
    sink = io.BytesIO()
    context.pack(taken, sink, Owner(7, 8), context.digest(taken), root=True)
    sink.seek(0)
    with tarfile.open(fileobj=sink) as archive:
        members = {member.name: member for member in archive}
    assert list(members) == [".", "deep", "deep/y.py", "inner", "x.py"]
    assert {(member.uid, member.gid) for member in members.values()} == {(7, 8)}
    assert (members["inner"].linkname, members["x.py"].size) == ("/nowhere", 1)


def test_files_that_change_meanwhile_end_it(tree: Path) -> None:
    context = Context(str(tree), Ignore())
    taken = take(context, ["a.txt"], None)
    expected = context.digest(taken)
    (tree / "a.txt").write_text("A")
    with pytest.raises(ConflictError, match="change"):
        context.pack(taken, io.BytesIO(), Owner(), expected, root=False)
    (tree / "a.txt").unlink()
    (tree / "a.txt").mkdir()
    with pytest.raises(ConflictError, match="changed"):
        context.digest(taken)


def test_a_file_that_becomes_shorter_while_it_is_packed(tree: Path) -> None:
    class Cutting(io.BytesIO):
        def write(self, data: object) -> int:
            os.truncate(tree / "a.txt", 0)
            return 0

    context = Context(str(tree), Ignore())
    (tree / "a.txt").write_bytes(b"a" * 100_000)
    taken = take(context, ["a.txt"], None)
    with pytest.raises(ConflictError, match="shorter"):
        context.pack(taken, Cutting(), Owner(), context.digest(taken), root=False)


def test_a_directory_that_becomes_a_link_leads_nowhere(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "x.py").write_text("secret")
    (outside / "deep" / "y.py").write_text("secret")
    context = Context(str(tree), Ignore())
    taken = take(context, ["src"], None)
    expected = context.digest(taken)
    (tree / "src").rename(tree / "was")
    (tree / "src").symlink_to(outside)
    sink = io.BytesIO()
    with pytest.raises(ConflictError, match="no directory any more"):
        context.digest(taken)
    with pytest.raises(ConflictError, match="no directory any more"):
        context.pack(taken, sink, Owner(), expected, root=False)
    assert b"secret" not in sink.getvalue()


def test_a_file_that_grows_as_fast_as_it_is_read(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "a.txt").write_bytes(b"a" * 4096)
    context = Context(str(tree), Ignore())
    taken = take(context, ["a.txt"], None)
    reads: list[int] = []

    def grow(_: Context) -> None:
        reads.append(4096)
        assert len(reads) < 9, "it goes on and on"
        with open(tree / "a.txt", "ab") as file:
            file.write(b"a" * 4096)

    monkeypatch.setattr(Context, "_require_open", grow)
    assert context.digest(taken) != context.digest(taken)


def test_paths_longer_than_the_system_takes_one(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=descriptor)
        inner = os.open("d" * 250, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
    os.close(descriptor)
    context = Context(str(tmp_path), Ignore())
    taken = take(context, ["."], None)
    assert len(taken) == 21
    context.pack(taken, io.BytesIO(), Owner(), context.digest(taken), root=False)


def test_what_is_no_file_is_refused(tree: Path) -> None:
    os.mkfifo(tree / "src" / "pipe")
    with pytest.raises(InvalidArgumentError, match="pipe"):
        digest(tree, "src")


def copy_step(sources: Sequence[str], target: str) -> CopyStep:
    return CopyStep(4, "COPY", (), tuple(sources), target, None, None, None)


def test_one_file_may_get_another_name_several_may_not(tree: Path) -> None:
    context = Context(str(tree), Ignore())
    assert choose(context, copy_step(["a.txt"], "/x")).one_file
    assert choose(context, copy_step(["a*.txt"], "/x")).one_file
    assert not choose(context, copy_step(["src"], "/x")).one_file
    with pytest.raises(InvalidArgumentError, match="several files"):
        choose(context, copy_step(["*.txt"], "/x"))


IGNORED = """\
# a comment
*.pyc
/build
docs/**/draft.md
!docs/keep/draft.md
node_modules
!node_modules/mine
**/cache
"""


@pytest.mark.parametrize(
    ("path", "out"),
    [
        ("x.pyc", True),
        ("a/x.pyc", False),
        ("build", True),
        ("build/x/y", True),
        ("a/build", False),
        ("docs/draft.md", True),
        ("docs/a/b/draft.md", True),
        ("docs/keep/draft.md", False),
        ("node_modules/a/b", True),
        ("node_modules/mine/b", False),
        ("cache", True),
        ("a/b/cache/c", True),
        ("a/b/cached", False),
    ],
)
def test_a_dockerignore(path: str, out: bool) -> None:
    assert Ignore(IGNORED).leaves_out(path) is out


@given(st.text(alphabet="ab*?[]\\-^!/.", max_size=20), st.booleans())
def test_any_pattern_is_one_or_is_refused(pattern: str, deep: bool) -> None:
    with contextlib.suppress(InvalidArgumentError):
        compiled(pattern, deep=deep).matches("ab/a")


def rewritten(content: bytes, owner: Owner | None, *, without_root: bool = False) -> bytes:
    sink = io.BytesIO()
    retar.rewrite(io.BytesIO(content), sink, owner, without_root=without_root)
    return sink.getvalue()


def archive() -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as target:
        for name, content in {"./": None, "n" * 150: b"x" * 700, "f": b"y"}.items():
            member = tarfile.TarInfo(name)
            member.uid, member.uname, member.mtime = 5, "somebody", 1.5
            if content is None:
                member.type = tarfile.DIRTYPE
                target.addfile(member)
            else:
                member.size = len(content)
                target.addfile(member, io.BytesIO(content))
    return sink.getvalue()


@pytest.mark.parametrize("owner", [Owner(7, 9), Owner(3_000_000, 3_000_001)])
def test_owners_are_rewritten_and_the_rest_is_not(owner: Owner) -> None:
    with tarfile.open(fileobj=io.BytesIO(rewritten(archive(), owner))) as changed:
        members = list(changed)
        contents = [file.read() for member in members if (file := changed.extractfile(member))]
    assert [member.name for member in members] == [".", "n" * 150, "f"]
    assert {(member.uid, member.gid, member.uname, member.mtime) for member in members} == {(*owner, "", 1.5)}
    assert contents == [b"x" * 700, b"y"]


def test_the_directory_itself_can_be_left_out() -> None:
    with tarfile.open(fileobj=io.BytesIO(rewritten(archive(), None, without_root=True))) as changed:
        assert [(member.name, member.uid, member.uname) for member in changed] == [
            ("n" * 150, 5, "somebody"),
            ("f", 5, "somebody"),
        ]


def long_name(size: int) -> bytes:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, size
    return header.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x" * 100,
        archive()[:600],
        archive()[:1500],
        long_name(1 << 40),
        archive()[:124] + b"-0000001000\0" + archive()[136:],
        archive()[:124] + b"\xff" * 12 + archive()[136:],
    ],
)
def test_a_tar_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(WireError):
        rewritten(content, Owner(1, 1))


def test_stars_in_a_row_are_one() -> None:
    """Else these would take for ever."""
    deep = compiled("**/" * 40 + "x", deep=True)
    assert deep.matches("x")
    assert deep.matches("a/b/x")
    assert not deep.matches("a/" * 200 + "y")
    flat = compiled("*" * 40 + "x", deep=False)
    assert flat.matches("ax")
    assert not flat.matches("a" * 250)


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("[a-c]", "abc"),
        ("[a-]", "a-"),
        ("[-a]", "-a"),
        ("[+--]", "+,-"),
        (r"[a\-c]", "a-c"),
        ("[^a-b]", "c-+,&"),
        ("[&&a]", "&a"),
    ],
)
def test_classes(pattern: str, matching: str) -> None:
    found = compiled(pattern, deep=False)
    assert [each for each in "abc-+,&" if found.matches(each)] == sorted(matching, key="abc-+,&".index)


@pytest.mark.parametrize("pattern", ["[", "[]", "[a", "[a-", "[\\", "[a-\\", "[c-a]", "[?--]"])
def test_classes_that_are_none(pattern: str) -> None:
    with pytest.raises(InvalidArgumentError):
        compiled(pattern, deep=False)
