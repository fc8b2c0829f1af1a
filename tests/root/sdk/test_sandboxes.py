"""All of the SDK against real sandboxes. Options that were dropped in silence are kind 19 of the faults we know."""

from __future__ import annotations

import pytest

from libdsec.errors import (
    CommandNotStartedError,
    ConflictError,
    ImageNotFoundError,
    InvalidArgumentError,
    SandboxNotFoundError,
    SandboxStateError,
    SessionClosedError,
    UnsupportedOperationError,
)
from libdsec.protocol.files import FileInfo
from libdsec.protocol.ids import new_token
from libdsec.sync import DSecClient, DSecContainerRunArgs, OutputLimit, Sandbox

pytestmark = pytest.mark.needs("root", "erofs", "overlay", "aether", "mmdebstrap")


def test_every_option_is_visible_inside(create):
    sandbox = create(
        memory_limit_mb=256,
        cpu_cores_limit=1,
        pids_limit=64,
        disk_limit_mb=64,
        disk_inodes_limit=2000,
        ttl_running_stop=600,
        deadline=3600,
        network_rules={"pypi": False},
        init_user="nobody",
        env={"COLOUR": "blue"},
        cwd="/var/tmp",
        hostname="box",
        labels={"task": "7"},
    )
    seen = sandbox.run_shell(
        "id -un; echo $COLOUR; pwd; hostname; nproc; grep MemTotal /proc/meminfo; df -k / | tail -1"
    )
    user, colour, cwd, hostname, cpus, memory, disk = seen.check().stdout.splitlines()
    assert (user, colour, cwd, hostname, cpus) == ("nobody", "blue", "/var/tmp", "box", "1")
    assert int(memory.split()[1]) <= 256 * 1024
    assert int(disk.split()[1]) <= 64 * 1024
    full = sandbox.run_shell("head -c 100M /dev/zero > /var/tmp/big", user="root")
    assert not full.ok
    assert "space" in full.stderr or "quota" in full.stderr.lower()
    inodes = sandbox.run_shell("rm -f big; touch $(seq -f f%g 3000) 2> /dev/null; ls | wc -l", user="root")
    assert 0 < int(inodes.stdout) < 2000
    info = sandbox.info()
    assert (info.state, info.spec.labels, info.spec.ttl_idle_s, info.spec.deadline_s) == (
        "running",
        {"task": "7"},
        600,
        3600,
    )


def test_a_process_limit_is_reported_as_such(create):
    sandbox = create(pids_limit=20)
    result = sandbox.run_shell("for i in $(seq 50); do sleep 5 & done; wait", timeout=20)
    assert result.pids_refused > 0


def test_out_of_memory_is_reported_as_such(create):
    sandbox = create(memory_limit_mb=64)
    result = sandbox.run(["python3", "-c", "x = bytearray(300 << 20)"], timeout=30)
    assert result.out_of_memory
    assert not result.ok
    assert "out of memory" in result.how()
    assert sandbox.run_shell("echo alive").stdout == "alive\n"


def test_options_that_cannot_be_honoured_are_refused(create):
    with pytest.raises((UnsupportedOperationError, InvalidArgumentError)):
        create(network_rules={"pypi": True})
    with pytest.raises(ImageNotFoundError):
        create(container_image="no/such:image")
    with pytest.raises(InvalidArgumentError):
        create(hostname="no good name!")
    with pytest.raises(TypeError):
        create(no_such_option=1)


def test_commands(sandbox: Sandbox):
    assert sandbox.run_shell("echo $0", shell="/bin/bash").stdout == "/bin/bash\n"
    assert sandbox.run(["printf", "%s|", "a b", "c"]).stdout == "a b|c|"
    assert sandbox.run(["cat"], stdin=b"x" * 1_000_000).stdout_total == 1_000_000
    result = sandbox.run_shell("echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
    result = sandbox.run_shell("kill -9 $$")
    assert (result.ended, result.signal, result.out_of_memory) == ("signaled", 9, False)
    assert sandbox.run(["pwd"], cwd="/usr").stdout == "/usr\n"
    assert sandbox.run(["env"], env={"A": "b c"}).stdout.splitlines().count("A=b c") == 1
    assert sandbox.run(["id", "-u"], user="65534:65534").stdout == "65534\n"


@pytest.mark.parametrize(
    ("options", "kind", "stage"),
    [
        ({"argv": ["no-such-program"]}, "not_found", "exec"),
        ({"argv": ["/etc/passwd"]}, "not_executable", "exec"),
        ({"argv": ["true"], "cwd": "/no/such"}, "no_such_directory", "cwd"),
        ({"argv": ["true"], "user": "nosuchuser"}, "no_such_user", "user"),
    ],
)
def test_what_never_started_says_why(sandbox: Sandbox, options, kind, stage):
    with pytest.raises(CommandNotStartedError) as caught:
        sandbox.run(options.pop("argv"), **options)
    assert (caught.value.details["kind"], caught.value.details["stage"]) == (kind, stage)


def test_streams(sandbox: Sandbox):
    with sandbox.exec_stream(
        ["sh", "-c", "read a; echo got $a; echo err >&2; read b; echo got $b"], stdin=True
    ) as process:
        assert process.stdin.write(b"one\n")
        assert process.stdout.read() == b"got one\n"
        assert process.stderr.read() == b"err\n"
        process.stdin.write(b"two\n")
        process.stdin.close()
        assert b"".join(process.stdout) == b"got two\n"
        assert process.wait().ok
    with sandbox.exec_stream(
        ["sh", "-c", "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.1; done"]
    ) as process:
        assert process.stdout.read() == b"ready\n"
        process.signal(15)
        assert process.stdout.read() == b"caught\n"
        assert process.wait().exit_code == 5
    with sandbox.exec_stream(["sh", "-c", "sleep 100 & sleep 100"]) as process:
        process.kill()
        assert process.wait().ended == "canceled"
    with sandbox.exec_stream(["nope"]) as process, pytest.raises(CommandNotStartedError):
        list(process.output())


def test_leaving_a_process_ends_it_there(sandbox: Sandbox):
    with sandbox.exec_stream(["sh", "-c", "echo up; exec sleep 4321"]) as process:
        assert process.stdout.read() == b"up\n"
    there = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -q '[4]321'"
    assert sandbox.run_shell(f"for i in $(seq 100); do {there} || exit 0; sleep 0.1; done; exit 1").ok


def test_a_terminal(sandbox: Sandbox):
    with sandbox.exec_stream(["sh", "-c", "stty size; read x; stty size"], pty=True, rows=33, cols=77) as process:
        assert process.stdout.read() == b"33 77\r\n"
        process.resize(44, 88)
        process.stdin.write(b"go\n")
        assert b"44 88\r\n" in b"".join(process.stdout)
        assert process.wait().ok


def test_sessions(sandbox: Sandbox):
    with sandbox.session(cwd="/usr", env={"A": "1"}) as session:
        assert session.run("pwd; echo $A").stdout == "/usr\n1\n"
        session.run("cd /tmp; A=2; f() { echo f$1; }; sleep 100 &")
        result = session.run("pwd; echo $A; f 3; jobs > /tmp/jobs; wc -l < /tmp/jobs")
        assert result.stdout.split() == ["/tmp", "2", "f3", "1"]
        assert result.untrusted
        assert session.run("false").exit_code == 1
        result = session.run("echo before; sleep 60", timeout=1)
        assert (result.ended, result.stdout) == ("timed_out", "before\n")
        assert session.run("echo after").stdout == "after\n"
        assert session.run("exit 4").session_ended
        with pytest.raises(SessionClosedError):
            session.run("true")


def test_files(sandbox: Sandbox, tmp_path):
    files = sandbox.files
    files.mkdir("/work/a/b", parents=True)
    assert files.write("/work/a/f", "hello") == 5
    files.append("/work/a/f", b" world")
    assert files.read_text("/work/a/f") == "hello world"
    assert files.read("/work/a/f", offset=6, length=3) == b"wor"
    info = files.stat("/work/a/f")
    assert isinstance(info, FileInfo)
    assert (info.type, info.size, info.mode, info.uid) == ("file", 11, 0o644, 0)
    sandbox.run_shell("ln -s f /work/a/link").check()
    assert (files.stat("/work/a/link").type, files.stat("/work/a/link", follow=True).type) == ("symlink", "file")
    assert {entry.path for entry in files.list("/work/a")} == {"b", "f", "link"}
    files.move("/work/a/f", "/work/a/g")
    assert (files.exists("/work/a/f"), files.exists("/work/a/g")) == (False, True)
    files.as_user("nobody").write("/tmp/mine", b"")
    assert files.stat("/tmp/mine").uid == 65534
    files.remove("/work", recursive=True)
    assert not files.exists("/work")
    local = tmp_path / "tree"
    (local / "d").mkdir(parents=True)
    (local / "d/big").write_bytes(bytes(range(256)) * 8192)
    files.upload(local, "/up")
    assert sandbox.run_shell("cmp /up/d/big /up/d/big && wc -c < /up/d/big").stdout == f"{256 * 8192}\n"
    assert files.download("/up", tmp_path / "back").bytes == 256 * 8192
    assert (tmp_path / "back/d/big").read_bytes() == (local / "d/big").read_bytes()
    files.archive("/up", tmp_path / "up.tar")
    files.extract(tmp_path / "up.tar", "/again")
    assert files.read("/again/d/big") == (local / "d/big").read_bytes()


def test_watch(sandbox: Sandbox):
    sandbox.files.mkdir("/watched", parents=True)
    with sandbox.files.watch("/watched") as events:
        seen = iter(events)
        sandbox.run_shell("for i in $(seq 100); do echo $i > /watched/file; sleep 0.05; done &")
        assert next(seen).path == "file"


def test_lists_logs_stop(client: DSecClient, create):
    only = new_token()
    sandbox = create(labels={"only": only})
    assert [info.id for info in client.list(labels={"only": only})] == [sandbox.id]
    sandbox.run_shell("true")
    assert next(entry.event for entry in sandbox.logs()) == "created"
    assert client.get(sandbox.id).run_shell("echo same").stdout == "same\n"
    assert sandbox.stop().state == "stopped"
    assert sandbox.stop().state == "stopped"
    with pytest.raises(SandboxStateError):
        sandbox.run_shell("true")
    assert client.list(labels={"only": only}) == ()
    assert [info.state for info in client.list(labels={"only": only}, include_final=True)] == ["stopped"]
    with pytest.raises(SandboxNotFoundError):
        client.get("x" * 24)


def test_images(client: DSecClient, image: str, create, tmp_path):
    assert image in [info.ref for info in client.images()]
    assert client.image(image).kind == "base"
    (tmp_path / "w").mkdir()
    (tmp_path / "w/hello").write_text("from the workspace")
    ref = f"test/sdk:{new_token()}"
    client.build_image(ref, f"dir:{tmp_path}", kind="workspace")
    try:
        with create(workspace=ref) as sandbox:
            assert sandbox.files.read_text("/w/hello") == "from the workspace"
            with pytest.raises(ConflictError):
                client.remove_image(ref)
    finally:
        client.remove_image(ref)
    with pytest.raises(ImageNotFoundError):
        client.image(ref)


def test_output_is_bounded_where_asked(sandbox: Sandbox):
    result = sandbox.run_shell("seq 100000", limit=OutputLimit(10, 7))
    assert (result.stdout, result.truncated, result.stdout_total) == ("1\n2\n3\n4\n5\n100000\n", True, 588895)


def test_the_create_arguments_stand_alone(client: DSecClient):
    with pytest.raises(InvalidArgumentError):
        client.run_container(DSecContainerRunArgs(container_image="untagged"))
