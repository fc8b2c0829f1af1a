"""File operations: as the sandbox's user, atomic where they should be, and never outside."""

from __future__ import annotations

import errno
import io
import os
import tarfile
from typing import Any

import msgspec
import pytest
from conversation import Call, Conversation
from rig import BY_DESCRIPTORS

from libdsec.protocol.errors import DSecError, FileOperationError, InvalidArgumentError, PathNotFoundError
from libdsec.protocol.files import FileInfo
from libdsec.protocol.frames import STDOUT, WINDOW

pytestmark = BY_DESCRIPTORS


@pytest.fixture
def place(talk: Conversation) -> Any:
    """An empty directory inside."""
    talk.exec("rm -rf /tmp/place && mkdir -m 777 /tmp/place")
    yield "/tmp/place"
    talk.exec("rm -rf /tmp/place")


AT_WRITER = (
    "for p in /proc/[0-9]*; do p=${{p#/proc/}}; "
    '[ $p != 1 ] && grep -qsx aether-init /proc/$p/comm && grep -qsx "State:.S.*" /proc/$p/status && {} && exit 0; '
    "done; false"
)


def wait_for_writer(talk: Conversation, script: str) -> None:
    """Until the child of a file operation waits for its input; `script` is run on it, whose pid is $p."""
    talk.wait_for(AT_WRITER.format(script))


def entries(call: Call) -> list[FileInfo]:
    assert call.answer is not None
    return [info for data in call.streams[STDOUT] for info in msgspec.msgpack.decode(data, type=list[FileInfo])]


def listing(talk: Conversation, path: str) -> dict[str, FileInfo]:
    return {info.path: info for info in entries(talk.file("list", path, recursive=True))}


def refusal(call: Call) -> DSecError:
    assert call.error is not None, call.result
    return call.error


def test_write_read_append(talk: Conversation, place: str) -> None:
    assert talk.file("write", f"{place}/a", b"hello").answer["size"] == 5
    talk.file("write", f"{place}/a", b" more", append=True)
    assert talk.file("read", f"{place}/a").stdout == b"hello more"
    assert talk.file("read", f"{place}/a", offset=2, length=3).stdout == b"llo"
    assert talk.file("read", f"{place}/a", offset=100).stdout == b""
    assert talk.file("read", "a", cwd=place).stdout == b"hello more"
    assert talk.file("read", f"{place}/a", cwd="/missing").stdout == b"hello more"


def test_large_files_flow_by_credit(talk: Conversation, place: str) -> None:
    data = os.urandom(6_000_000)
    assert talk.file("write", f"{place}/big", data).answer["size"] == len(data)
    call = talk.start_file("read", f"{place}/big")
    call.grants = False
    talk.take_all()
    assert len(call.stdout) == WINDOW
    call.grants = True
    talk.grant(call, STDOUT, WINDOW)
    assert talk.finish(call).stdout == data


def test_a_write_replaces_at_once_and_keeps_mode_and_owner(talk: Conversation, place: str) -> None:
    talk.exec(f"echo old >{place}/a; chown 1000:1001 {place}/a; chmod 640 {place}/a; ln {place}/a {place}/b")
    call = talk.start_file("write", f"{place}/a")
    talk.feed(call, b"new", end=False)
    assert talk.exec(f"cat {place}/a").stdout == b"old\n"
    talk.feed(call, b"er")
    talk.finish(call)
    assert talk.exec(f"cat {place}/a; stat -c '%u %g %a' {place}/a; ls -A {place}").stdout.split() == [
        b"newer1000", b"1001", b"640", b"a", b"b",
    ]  # fmt: skip


def test_a_canceled_write_leaves_the_old_file_alone(talk: Conversation, place: str) -> None:
    talk.file("write", f"{place}/a", b"old")
    call = talk.start_file("write", f"{place}/a")
    talk.feed(call, b"half", end=False)
    talk.cancel(call)
    assert refusal(talk.finish(call)).code == "deadline_exceeded"
    assert talk.exec(f"cat {place}/a; ls -A {place}").stdout == b"olda\n"


@pytest.mark.parametrize("old", [True, False], ids=["over", "new"])
@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_writer_that_is_killed_leaves_nothing_behind(talk: Conversation, place: str, end: str, old: bool) -> None:
    if old:
        talk.exec(f"echo old >{place}/a")
    before = talk.exec(f"ls -A {place}").stdout
    call = talk.start_file("write", f"{place}/a")
    talk.feed(call, b"x" * 100_000, end=False)
    wait_for_writer(talk, f"kill -{'KILL' if end == 'killed' else 'STOP'} $p")
    if end == "stopped":
        talk.cancel(call)  # which it cannot hear, so PID 1 kills it
    assert talk.finish(call).error is not None
    talk.wait_for(f"! ({AT_WRITER.format('true')})")
    assert talk.exec(f"ls -A {place}").stdout == before


@pytest.mark.parametrize("place", ["/dev/shm", "/tmp/one", "/"], ids=["tmpfs", "new", "image"])
def test_writers_of_one_new_file_replace_each_other(talk: Conversation, place: str) -> None:
    name = f"{place}/of-two".replace("//", "/")
    first, second = (talk.start_file("write", name, parents=True, mode=0o640) for _ in range(2))
    talk.feed(first, b"first")
    talk.finish(first)
    talk.feed(second, b"second")
    assert talk.finish(second).answer["size"] == 6
    assert talk.exec(f"cat {name}; stat -c %a {name}; ls -A {place} | grep of-two").stdout == b"second640\nof-two\n"
    exclusive = talk.start_file("write", f"{name}-exclusive", exclusive=True)
    wait_for_writer(talk, "true")
    talk.file("write", f"{name}-exclusive", b"won")
    talk.feed(exclusive, b"late")
    assert refusal(talk.finish(exclusive)).details["errno"] == errno.EEXIST
    assert talk.exec(f"cat {name}-exclusive; rm {name} {name}-exclusive").stdout == b"won"


def test_write_options(talk: Conversation, place: str) -> None:
    talk.file("write", f"{place}/x/y/z", b"1", parents=True, mode=0o751)
    assert talk.file("stat", f"{place}/x/y/z").answer["info"]["mode"] == 0o751
    assert talk.file("stat", f"{place}/x").answer["info"]["mode"] == 0o755
    assert refusal(talk.file("write", f"{place}/x/y/z", b"2", exclusive=True)).details["errno"] == 17
    assert isinstance(refusal(talk.file("write", f"{place}/no/dir", b"")), PathNotFoundError)
    assert refusal(talk.file("write", place, b"")).details["errno"] == 21


def test_links_and_devices_are_written_in_place(talk: Conversation, place: str) -> None:
    talk.exec(f"echo target >{place}/t; ln -s t {place}/l")
    talk.file("write", f"{place}/l", b"through")
    assert talk.exec(f"cat {place}/t; readlink {place}/l").stdout == b"throught\n"
    assert talk.file("write", "/dev/null", b"x" * 100).answer["size"] == 100


def test_they_can_do_what_the_user_can(talk: Conversation, place: str) -> None:
    assert refusal(talk.file("write", "/etc/passwd", b"", user="daemon")).details["errno"] == 13
    assert refusal(talk.file("read", "/etc/shadow", user="daemon")).details["errno"] == 13
    talk.file("write", f"{place}/mine", b"", user="1000:1001")
    info = talk.file("stat", f"{place}/mine").answer["info"]
    assert (info["uid"], info["gid"]) == (1000, 1001)
    assert refusal(talk.file("stat", "/", user="not-a-user")).details["kind"] == "no_such_user"
    assert refusal(talk.file("read", "/proc/1/environ")).details["errno"] == 13
    assert refusal(talk.file("list", "/proc/1/fd")).details["errno"] == 13


def test_stat(talk: Conversation, place: str) -> None:
    talk.exec(f"cd {place}; printf abc >f; ln -s f l; ln -s /nowhere d; mkfifo p; touch -d @1.5 f")
    info = talk.file("stat", f"{place}/f").answer["info"]
    assert (info["type"], info["size"], info["mtime_ns"]) == ("file", 3, 1_500_000_000)
    link = talk.file("stat", f"{place}/l").answer["info"]
    assert (link["type"], link["target"], link["path"]) == ("symlink", "f", f"{place}/l")
    assert talk.file("stat", f"{place}/l", follow=True).answer["info"]["type"] == "file"
    assert isinstance(refusal(talk.file("stat", f"{place}/d", follow=True)), PathNotFoundError)
    types = {path: talk.file("stat", path).answer["info"]["type"] for path in (place, f"{place}/p", "/dev/null")}
    assert types == {place: "directory", f"{place}/p": "fifo", "/dev/null": "char"}
    assert isinstance(refusal(talk.file("stat", "")), InvalidArgumentError)
    assert isinstance(refusal(talk.file("stat", "/", recursive=True)), InvalidArgumentError)


def test_mkdir_move_remove(talk: Conversation, place: str) -> None:
    assert isinstance(refusal(talk.file("mkdir", f"{place}/a/b")), PathNotFoundError)
    for _ in range(2):
        assert talk.file("mkdir", f"{place}/a/b/c", recursive=True).answer["entries"] == 1
    assert refusal(talk.file("mkdir", f"{place}/a")).details["errno"] == 17
    talk.file("move", f"{place}/a", to=f"{place}/moved")
    assert sorted(listing(talk, place)) == ["moved", "moved/b", "moved/b/c"]
    assert isinstance(refusal(talk.file("remove", f"{place}/a")), PathNotFoundError)
    failed = refusal(talk.file("remove", f"{place}/moved"))
    assert isinstance(failed, FileOperationError)
    assert failed.details["errno"] == 39
    assert talk.file("remove", f"{place}/moved", recursive=True).answer["entries"] == 3
    assert listing(talk, place) == {}


def test_a_directory_of_the_image_and_another_file_system(talk: Conversation, place: str) -> None:
    """What a rename cannot do (an overlay renames no directory of its layers) is done all the same."""
    before = listing(talk, "/usr/share/doc")
    assert len(before) > 50
    talk.file("move", "/usr/share/doc", to=f"{place}/doc")
    after = listing(talk, f"{place}/doc")
    assert {path: (i.type, i.mode, i.mtime_ns, i.target) for path, i in after.items()} == {
        path: (i.type, i.mode, i.mtime_ns, i.target) for path, i in before.items()
    }
    assert isinstance(refusal(talk.file("stat", "/usr/share/doc")), PathNotFoundError)
    talk.file("write", f"{place}/one", b"1")
    talk.file("move", f"{place}/one", to="/dev/shm/two")
    assert talk.file("read", "/dev/shm/two").stdout == b"1"
    assert refusal(talk.file("move", f"{place}/doc", to="/dev/shm/two")).details["errno"] == 20
    assert refusal(talk.file("move", f"{place}/doc", to="/proc/doc")).details["path"] == "/proc/doc"
    assert sorted(talk.exec(f"ls -A {place} /dev/shm").stdout.split()) == sorted(
        [b"/dev/shm:", f"{place}:".encode(), b"doc", b"two"]
    )


def test_remove_follows_no_links_and_knows_depth(talk: Conversation, place: str) -> None:
    talk.exec(
        f"mkdir -p {place}/keep {place}/gone; touch {place}/keep/f; ln -s ../keep {place}/gone/l; cd {place}/gone;"
        "i=0; while [ $i -lt 600 ]; do mkdir d && cd d; i=$((i+1)); done; touch end"
    )
    talk.file("remove", f"{place}/gone", recursive=True)
    assert sorted(listing(talk, place)) == ["keep", "keep/f"]


def test_list(talk: Conversation, place: str) -> None:
    talk.exec(f"cd {place}; i=0; while [ $i -lt 1200 ]; do : >f$i; i=$((i+1)); done; mkdir d; touch d/inner")
    flat = talk.file("list", place)
    assert (len(entries(flat)), flat.answer["entries"], flat.answer["truncated"]) == (1201, 1201, False)
    assert "d/inner" in listing(talk, place)
    cut = talk.file("list", place, limit=10)
    assert (len(entries(cut)), cut.answer["truncated"]) == (10, True)
    assert isinstance(refusal(talk.file("list", f"{place}/f1")), PathNotFoundError)


def test_an_archive_unpacks_into_the_same(talk: Conversation, place: str) -> None:
    long = "n" * 200
    talk.exec(
        f"mkdir -p {place}/src/{long} && cd {place}/src && echo data >f && chmod 4751 f && chown 12:34 f && ln f hard"
        f"&& ln -s f soft && ln -s /nowhere/{long} dangling && mkfifo pipe && echo deep >{long}/{long}"
        f"&& mkdir -m 1777 sticky && touch -d @1234.567890123 f {long} sticky"
        "&& : >empty && head -c 300000 /dev/zero >z"
    )
    packed = talk.file("archive", f"{place}/src")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        names = {member.name for member in archive}
    assert {".", "f", "hard", f"{long}/{long}"} <= names
    unpacked = talk.file("extract", f"{place}/made/dst", packed.stdout)
    assert unpacked.answer["size"] == packed.answer["size"]
    before, after = listing(talk, f"{place}/src"), listing(talk, f"{place}/made/dst")
    assert list(before) == list(after)
    for path, info in before.items():
        # the size of a directory is its file system's affair
        assert after[path] == (info if info.type != "directory" else after[path]), path
        assert (after[path].mode, after[path].mtime_ns) == (info.mode, info.mtime_ns), path
    assert talk.exec(f"cd {place}/made/dst; cat {long}/{long}; cmp z ../../src/z").stdout == b"deep\n"


def test_one_file_is_an_archive_of_its_name(talk: Conversation, place: str) -> None:
    talk.file("write", f"{place}/single", b"content")
    with tarfile.open(fileobj=io.BytesIO(talk.file("archive", f"{place}/single").stdout)) as archive:
        assert archive.getnames() == ["single"]


def test_a_tar_of_python_unpacks(talk: Conversation, place: str) -> None:
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        data = made_tar([("d/f", tarfile.REGTYPE, b"x" * 70_000), ("d/l", tarfile.SYMTYPE, "f")], form)
        assert talk.file("extract", f"{place}/{form}", data).answer["entries"] == 2
        assert listing(talk, f"{place}/{form}")["d/f"].size == 70_000


def made_tar(members: list[tuple[str, bytes, bytes | str]], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            if isinstance(content, bytes):
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            else:
                member.linkname = content
                archive.addfile(member)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "members",
    [
        [("../evil", tarfile.REGTYPE, b"x")],
        [("a/../../evil", tarfile.REGTYPE, b"x")],
        [("/tmp/evil", tarfile.REGTYPE, b"x")],
        [("s", tarfile.SYMTYPE, "/tmp"), ("s/evil", tarfile.REGTYPE, b"x")],
        [("s", tarfile.SYMTYPE, ".."), ("s/evil", tarfile.REGTYPE, b"x")],
        [("s", tarfile.SYMTYPE, "/tmp"), ("s/new/evil", tarfile.REGTYPE, b"x")],
        [("s", tarfile.SYMTYPE, ".."), ("s/evil", tarfile.DIRTYPE, "")],
        [("h", tarfile.LNKTYPE, "/etc/passwd")],
        [("h", tarfile.LNKTYPE, "../../etc/passwd")],
        [("s", tarfile.SYMTYPE, "/etc"), ("h", tarfile.LNKTYPE, "s/passwd")],
        [("s", tarfile.SYMTYPE, "/proc/self/root/tmp"), ("s/evil", tarfile.REGTYPE, b"x")],
    ],
)
def test_a_member_that_leads_outside_is_refused(talk: Conversation, place: str, members: Any) -> None:
    assert isinstance(refusal(talk.file("extract", f"{place}/in", made_tar(members))), InvalidArgumentError)
    assert talk.exec(f"ls -d {place}/evil /tmp/evil /tmp/new {place}/in/h 2>/dev/null").stdout == b""


def test_links_inside_are_followed_and_replaced(talk: Conversation, place: str) -> None:
    data = made_tar(
        [("in", tarfile.SYMTYPE, "dir"), ("dir/x", tarfile.REGTYPE, b"1"), ("in/y", tarfile.REGTYPE, b"2"),
         ("out", tarfile.SYMTYPE, "/etc/passwd"), ("out", tarfile.REGTYPE, b"mine")]
    )  # fmt: skip
    assert talk.file("extract", place, data).answer["entries"] == 5
    assert talk.exec(f"cd {place}; cat dir/y out; grep -c root /etc/passwd").stdout == b"2mine1\n"


@pytest.mark.parametrize("data", [b"garbage" * 1000, b"\xff" * 2_000_000, b"x"])
def test_what_is_no_archive_is_refused(talk: Conversation, place: str, data: bytes) -> None:
    assert refusal(talk.file("extract", f"{place}/in", data)).code in ("invalid_argument", "file_operation")


def test_a_path_that_never_answers_can_be_canceled(talk: Conversation, place: str) -> None:
    talk.exec(f"mkfifo {place}/p")
    call = talk.start_file("read", f"{place}/p")
    assert talk.exec("echo others go on").stdout == b"others go on\n"
    talk.cancel(call)
    assert refusal(talk.finish(call)).code == "deadline_exceeded"


def test_a_killed_child_is_an_error_and_leaves_no_process(talk: Conversation, place: str) -> None:
    talk.exec(f"mkfifo {place}/p")
    call = talk.start_file("read", f"{place}/p")
    talk.exec("for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p = 1 ] || [ $p = $$ ] || kill -9 $p; done")
    assert isinstance(refusal(talk.finish(call)), FileOperationError)
    talk.wait_for("set -- /proc/[0-9]*; [ $# -le 2 ]")  # PID 1 and the shell


def test_a_stopped_child_is_ended_by_a_cancel(talk: Conversation, place: str) -> None:
    talk.exec(f"mkfifo {place}/p")
    call = talk.start_file("read", f"{place}/p")
    talk.exec("for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p = 1 ] || [ $p = $$ ] || kill -STOP $p; done")
    talk.cancel(call)
    assert refusal(talk.finish(call)).code == "deadline_exceeded"
    talk.wait_for("set -- /proc/[0-9]*; [ $# -le 2 ]")  # PID 1 and the shell


def test_an_image_with_nothing_in_it(talk: Conversation, place: str) -> None:
    """No program of the image is run: the operations work while every one of them is out of reach."""
    talk.exec("mv /bin/sh /bin/sh.away; mkdir -p /x")
    try:
        talk.file("write", f"{place}/a", b"1")
        assert talk.file("read", f"{place}/a").stdout == b"1"
        talk.file("extract", f"{place}/b", talk.file("archive", place).stdout)
    finally:
        talk.exec(["/bin/bash", "-c", "mv /bin/sh.away /bin/sh"])
