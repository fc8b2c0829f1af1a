"""What `dsec replay` says of steps, against fresh sandboxes that are scripted."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile

import msgspec
import pytest
from logbook import BOX, info

from dsec.replay.run import replay
from libdsec.protocol.calls import SandboxRequest
from libdsec.protocol.errors import (
    CapacityError,
    CommandNotStartedError,
    DeadlineExceededError,
    ImageNotFoundError,
    InvalidArgumentError,
    PathNotFoundError,
    UnavailableError,
)
from libdsec.protocol.exec import ExecAnswer, ExecRequest, SessionInfo, SessionOpenRequest, SessionRunRequest
from libdsec.protocol.files import FileAnswer, FileInfo, FileListRequest, FileReadRequest, FileRequest, FileWriteRequest
from libdsec.protocol.steps import OutputRecord


def verdicts(report):
    return [step.verdict for step in report.steps]


async def test_a_log_that_runs_the_same_is_the_same(book, node):
    book.exec("one", out=b"1\n")
    book.exec("none", out=b"")
    book.add("sandbox.stop", SandboxRequest(BOX), info(state="stopped"))
    node.scripts["one"] = lambda _: b"1\n"
    report = await replay(book.log(), node.say)
    assert verdicts(report) == ["same"] * 4
    assert report.exit_code == 0
    assert len(node.made) == 1, "one sandbox is enough when nothing differs"


async def test_the_environment_is_the_recorded_one_and_nobody_elses(book, node):
    book.exec("hostname")
    await replay(book.log(), node.say)
    spec = node.made[0].spec
    assert (spec.image, spec.env, spec.hostname) == ("debian:12", {"A": "1"}, BOX)
    assert (spec.rollout, spec.job, spec.labels) == (None, None, {"replay": BOX})
    assert node.made[0].idempotency_key != "key"
    assert spec.ttl_idle_s, "one that nobody stops ends by itself"
    assert node.stopped == [f"{'fresh0':0<24}"]


async def test_different_and_nondeterministic_are_told_apart_by_a_second_sandbox(book, node):
    book.exec("stable", out=b"before")
    book.exec("random", out=b"before")
    book.exec("after", out=b"same")
    node.scripts = {"stable": lambda _: b"now", "random": lambda n: b"%d" % n, "after": lambda _: b"same"}
    report = await replay(book.log(), node.say)
    assert verdicts(report) == ["same", "different", "nondeterministic", "same"]
    assert report.exit_code == 1
    assert [d.fact for d in report.steps[1].differences] == ["stdout_total", "stdout_sha256"]
    assert len(node.made) == len(node.stopped) == 2
    second = [args.argv[0] for sandbox, method, args in node.said if sandbox.startswith("fresh1") and method == "exec"]
    assert second == ["stable", "random"], "nothing behind the last difference runs twice"


async def test_only_nondeterministic(book, node):
    book.exec("random", out=b"x")
    node.scripts["random"] = lambda n: b"%d" % n
    assert (await replay(book.log(), node.say)).exit_code == 3


async def test_errors_are_compared_by_their_codes_and_details(book, node):
    def refused(kind):
        return CommandNotStartedError("cannot", kind=kind, errno=2, stage="exec", more="x")

    for name in ("same", "kind", "code", "ran"):
        args = ExecRequest(BOX, (name,))
        book.add("exec", args, refused("not_found"))
    node.scripts = {
        "same": lambda _: refused("not_found"),
        "kind": lambda _: refused("permission"),
        "code": lambda _: PathNotFoundError("cannot"),
        "ran": lambda _: b"",
    }
    report = await replay(book.log(), node.say)
    assert verdicts(report) == ["same", "same", "different", "different", "different"]
    assert report.steps[4].differences[0].fact == "ended"
    assert report.steps[4].differences[0].recorded == "error"


async def test_output_whose_bytes_are_not_in_the_log_is_compared_by_its_size(book, node):
    for name, size in (("long", 5), ("short", 4)):
        book.exec(name, out=b"12345"[:size], stdout=OutputRecord(size))
    node.scripts = {name: lambda _: b"abcde" for name in ("long", "short")}
    assert verdicts(await replay(book.log(), node.say)) == ["same", "same", "different"]


async def test_what_cannot_be_run_again_is_skipped_and_leaves_a_gap_where_it_may_have_changed_something(book, node):
    book.exec("before")
    book.add("file.read", FileReadRequest(BOX, "/large"), FileAnswer(9), opaque="too large")
    book.exec("still fine")
    book.add("file.write", FileWriteRequest(BOX, "/a"), FileAnswer(3), input_digest=hashlib.sha256(b"abc").digest())
    book.exec("terminal", opaque="it was a terminal")
    book.exec("large request", request=msgspec.Raw(b"\xc0"))
    book.add("exec", ExecRequest(BOX, ("large answer",)), None)
    book.exec("running", state="running", ended_at=None)
    book.exec("unknown", state="unknown")
    book.add("exec", ExecRequest(BOX, ("canceled",)), ExecAnswer("canceled"))
    book.add("exec", ExecRequest(BOX, ("late",)), DeadlineExceededError("cannot"))
    book.exec("after")
    report = await replay(book.log(), node.say)
    assert verdicts(report) == ["same", "same", "skipped", "same", *["skipped"] * 8, "same"]
    assert [step.gap for step in report.steps] == [""] * 5 + ["main#5"] * 8
    assert "input" in report.steps[4].skipped
    assert report.totals == {"same": 4, "different": 0, "nondeterministic": 0, "skipped": 9}


async def test_input_that_is_known_to_be_empty_is_given(book, node):
    given = []
    book.add("file.write", FileWriteRequest(BOX, "/a"), FileAnswer(0), input_digest=hashlib.sha256(b"").digest())
    node.answers["file.write"] = lambda args: FileAnswer(0)

    async def say(method, args, take, *, stdin=None, timeout):
        given.append((method, stdin))
        return await node.say(method, args, take, stdin=stdin, timeout=timeout)

    assert verdicts(await replay(book.log(), say)) == ["same", "same"]
    assert ("file.write", b"") in given


async def test_sessions_are_found_by_what_opened_them(book, node):
    ran = []
    book.add("session.open", SessionOpenRequest(BOX), SessionInfo(4, 100))
    book.add("session.run", SessionRunRequest(BOX, 4, "pwd"), ExecAnswer("exited", 0))
    node.answers["session.open"] = lambda args: SessionInfo(1, 55)

    def run(args):
        ran.append(args.session)
        return ExecAnswer("exited", 0)

    node.answers["session.run"] = run
    assert verdicts(await replay(book.log(), node.say)) == ["same"] * 3
    assert ran == [1]


async def test_files_are_compared_without_their_times(book, node):
    def file(mtime, **fields):
        return FileInfo(
            **{"path": "f", "type": "file", "size": 3, "mode": 0o644, "uid": 0, "gid": 0, **fields}, mtime_ns=mtime
        )

    book.add("file.stat", FileRequest(BOX, "f"), FileAnswer(info=file(1)))
    book.add("file.stat", FileRequest(BOX, "f"), FileAnswer(info=file(1, mode=0o600)))
    book.add("file.stat", FileRequest(BOX, "f"), FileAnswer(info=file(1, type="directory", size=4096)))
    seen = iter([file(2), file(2), file(2, type="directory", size=60)] * 2)
    node.answers["file.stat"] = lambda args: FileAnswer(info=next(seen))
    report = await replay(book.log(), node.say)
    assert verdicts(report) == ["same", "same", "different", "same"]
    assert report.steps[2].differences[0].fact == "info"


async def test_listings_are_compared_in_any_order(book, node):
    def listed(*names, mtime):
        entries = [FileInfo(name, "file", 1, 0o644, 0, 0, mtime) for name in names]
        return msgspec.msgpack.encode(entries[:1]) + msgspec.msgpack.encode(entries[1:])

    for names in (("a", "b"), ("a", "c")):
        output = listed(*names, mtime=1)
        record = OutputRecord(len(output), output)
        book.add("file.list", FileListRequest(BOX, "/"), FileAnswer(entries=2), stdout=record)

    async def say(method, args, take, **rest):
        if method != "file.list":
            return await node.say(method, args, take, **rest)
        take(2, listed("b", "a", mtime=2))
        return FileAnswer(entries=2)

    assert verdicts(await replay(book.log(), say)) == ["same", "same", "different"]


async def test_what_ran_at_the_same_time_runs_so_again(book, node):
    """The first waits for the second: one after the other they would never end."""
    node.gates["waits"] = asyncio.Event()
    book.exec("waits", track="main/a", began_at=10.0, ended_at=20.0)
    book.exec("opens", "waits", track="main/b", began_at=11.0, ended_at=12.0)
    book.exec("last", began_at=21.0, ended_at=22.0)
    report = await asyncio.wait_for(replay(book.log(), node.say), 30)
    assert verdicts(report) == ["same"] * 4
    assert node.said[-2][2].argv == ("last",)


async def test_a_sandbox_of_which_no_create_is_recorded_needs_an_image(node, book):
    del book.steps[0]
    book.exec("one")
    with pytest.raises(InvalidArgumentError, match="--image"):
        await replay(book.log(), node.say)
    assert node.made == []
    assert verdicts(await replay(book.log(), node.say, image="other:1")) == ["same"]
    assert node.made[0].spec.image == "other:1"


async def test_an_image_takes_the_place_of_the_recorded_one(node, book):
    await replay(book.log(), node.say, image="other:1")
    assert (node.made[0].spec.image, node.made[0].spec.env) == ("other:1", {"A": "1"})


async def test_one_that_cannot_be_stopped_keeps_no_other_from_it(book, node):
    book.create(info("b" * 24), sandbox="b" * 24)
    asked = []

    async def say(method, args, take, **options):
        if method == "sandbox.stop":
            asked.append(args.sandbox)
            if len(asked) == 1:
                raise UnavailableError("cannot stop it")
        return await node.say(method, args, take, **options)

    with pytest.raises(UnavailableError, match="cannot stop it"):
        await replay(book.log(), say)
    assert asked == [f"{name:0<24}" for name in ("fresh0", "fresh1")]


async def test_kept_sandboxes_are_not_stopped_even_where_the_log_did(node, book):
    book.add("sandbox.stop", SandboxRequest(BOX), info(state="stopped"))
    report = await replay(book.log(), node.say, keep=True)
    assert verdicts(report) == ["same", "skipped"]
    assert report.kept == {BOX: (f"{'fresh0':0<24}",)}
    assert node.stopped == []
    assert node.made[0].spec.ttl_idle_s is None


@pytest.mark.parametrize("error", [ImageNotFoundError("cannot find image"), CapacityError("cannot: no room")])
async def test_no_verdict_without_a_sandbox(node, book, error):
    async def say(method, args, take, **rest):
        raise error

    with pytest.raises(type(error), match="no fresh sandbox"):
        await replay(book.log(), say)


async def test_a_lost_server_ends_it_and_what_was_made_is_taken_away(node, book):
    book.exec("lost")
    node.scripts["lost"] = lambda _: UnavailableError("cannot reach it")
    with pytest.raises(UnavailableError):
        await replay(book.log(), node.say)
    assert node.stopped == [f"{'fresh0':0<24}"]


async def test_progress_is_told(node, book):
    told = []
    book.exec("one", out=b"x")
    await replay(book.log(), node.say, progress=lambda *what: told.append(what))
    assert told == [("first", 1, 2), ("first", 2, 2), ("second", 1, 2), ("second", 2, 2)]


async def test_a_file_read_anew_is_compared_by_its_bytes(node, book):
    book.add("file.read", FileReadRequest(BOX, "/f"), FileAnswer(2), stdout=OutputRecord(2, b"ab"))

    async def say(method, args, take, **rest):
        if method != "file.read":
            return await node.say(method, args, take, **rest)
        take(2, b"ac")
        return FileAnswer(2)

    assert verdicts(await replay(book.log(), say)) == ["same", "different"]


async def test_a_create_that_fails_no_more_is_different_and_taken_away(node, book):
    book.create(state="error", answer=ImageNotFoundError("cannot"), sandbox="other000000000000000000")
    report = await replay(book.log(), node.say)
    assert verdicts(report) == ["same", "different"]
    assert len(node.stopped) == len(node.made) == 4


def packed(files, *, mtime):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), mtime
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


async def test_archives_are_compared_by_their_members(node, book):
    for files in ({"a": b"1", "b": b"2"}, {"a": b"1", "b": b"other"}):
        output = packed(files, mtime=1.5)
        record = OutputRecord(len(output), output)
        book.add("file.archive", FileRequest(BOX, "/d"), FileAnswer(len(output), 2), stdout=record)

    async def say(method, args, take, **rest):
        if method != "file.archive":
            return await node.say(method, args, take, **rest)
        output = packed({"b": b"2", "a": b"1"}, mtime=3)
        take(2, output)
        return FileAnswer(len(output), 2)

    assert verdicts(await replay(book.log(), say)) == ["same", "same", "different"]


async def test_a_listing_that_was_cut_is_compared_by_its_count(node, book):
    record = OutputRecord(1, b"\x90")
    book.add("file.list", FileListRequest(BOX, "/", limit=1), FileAnswer(entries=1, truncated=True), stdout=record)
    node.answers["file.list"] = lambda args: FileAnswer(entries=1, truncated=True)
    assert verdicts(await replay(book.log(), node.say)) == ["same", "same"]


async def test_a_cancelled_replay_takes_its_sandboxes_away(node, book):
    node.gates["waits"] = asyncio.Event()
    book.exec("waits")
    task = asyncio.create_task(replay(book.log(), node.say))
    await node.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert node.stopped == [f"{'fresh0':0<24}"]


async def test_more_at_once_than_can_be_wait(node, book, monkeypatch):
    monkeypatch.setattr("dsec.replay.world.AT_ONCE", 2)
    for n in range(9):
        book.exec(f"c{n}", began_at=10.0, ended_at=20.0)
    assert verdicts(await replay(book.log(), node.say)) == ["same"] * 10
