"""What a client asks: honoured or refused, by name, before anything is taken."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dsec.edge.options import Machine, check_key, check_spec
from dsec.edge.resolve import make_defaults, resolve_exec, resolve_file, resolve_run, resolve_session
from libdsec.protocol.environment import ImageConfig
from libdsec.protocol.errors import InvalidArgumentError
from libdsec.protocol.exec import ExecRequest, OutputLimit, SessionOpenRequest, SessionRunRequest
from libdsec.protocol.files import FileMoveRequest, FileReadRequest, FileRequest, FileWriteRequest
from libdsec.protocol.spec import MIB, Limits, Requests, SandboxSpec

MACHINE = Machine(memory_bytes=1024 * MIB, cpus=2, pids=1000, default_memory_bytes=2048 * MIB, default_pids=200)
NAN = float("nan")


def spec(**fields: Any) -> SandboxSpec:
    return SandboxSpec("tiny:1", **fields)


def test_defaults_never_exceed_the_machine() -> None:
    limits = check_spec(spec(), MACHINE)
    assert (limits.memory_bytes, limits.pids, limits.cpu_cores) == (1024 * MIB, 200, None)
    asked = Limits(memory_bytes=64 * MIB, pids=5, cpu_cores=1.5, disk_bytes=5, disk_inodes=6)
    assert check_spec(spec(limits=asked), MACHINE) == asked


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"limits": Limits(memory_bytes=1025 * MIB)}, "limits.memory_bytes"),
        ({"limits": Limits(memory_bytes=1)}, "limits.memory_bytes"),
        ({"limits": Limits(cpu_cores=2.5)}, "limits.cpu_cores"),
        ({"limits": Limits(cpu_cores=0)}, "limits.cpu_cores"),
        ({"limits": Limits(cpu_cores=NAN)}, "limits.cpu_cores"),
        ({"limits": Limits(pids=0)}, "limits.pids"),
        ({"limits": Limits(pids=1)}, "limits.pids"),
        ({"limits": Limits(pids=1001)}, "limits.pids"),
        ({"limits": Limits(disk_bytes=0)}, "limits.disk_bytes"),
        ({"limits": Limits(disk_inodes=-1)}, "limits.disk_inodes"),
        ({"limits": Limits(memory_bytes=64 * MIB), "requests": Requests(65 * MIB)}, "requests.memory_bytes"),
        ({"requests": Requests(-1)}, "requests.memory_bytes"),
        ({"requests": Requests(pids=0)}, "requests.pids"),
        ({"env": {"": "x"}}, "env"),
        ({"env": {"A=B": "x"}}, "env"),
        ({"env": {"A": "x\0"}}, "env"),
        ({"cwd": "relative"}, "cwd"),
        ({"cwd": "/a\0b"}, "cwd"),
        ({"user": ""}, "user"),
        ({"user": "a\0b"}, "user"),
        ({"hostname": "-bad"}, "hostname"),
        ({"hostname": "x" * 65}, "hostname"),
        ({"hostname": "a b"}, "hostname"),
        ({"ttl_idle_s": 0}, "ttl_idle_s"),
        ({"ttl_idle_s": NAN}, "ttl_idle_s"),
        ({"deadline_s": -1}, "deadline_s"),
        ({"deadline_s": float("inf")}, "deadline_s"),
        ({"labels": {"": "x"}}, "labels"),
        ({"labels": {str(n): "x" for n in range(65)}}, "labels"),
        ({"toolkits": tuple(f"t:{n}" for n in range(65))}, "toolkits"),
    ],
)
def test_bad_options_are_refused_by_name(fields: dict[str, Any], names: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_spec(spec(**fields), MACHINE)
    assert caught.value.details["field"] == names


def test_idempotency_keys_are_bounded() -> None:
    check_key(None)
    check_key("k")
    for key in ("", "k" * 257):
        with pytest.raises(InvalidArgumentError):
            check_key(key)


def test_image_below_sandbox_below_call() -> None:
    image = ImageConfig(env={"A": "image", "B": "image", "C": "image"}, cwd="/image", user="web")
    defaults = make_defaults(spec(env={"B": "sandbox", "C": "sandbox"}), image)
    resolved = resolve_exec(ExecRequest("s", ("true",), env={"C": "call"}), defaults)
    env = resolved.env
    assert isinstance(env, dict)
    assert (env["A"], env["B"], env["C"], env["HOME"]) == ("image", "sandbox", "call", "/home/web")
    assert (resolved.cwd, resolved.user) == ("/image", "web")
    explicit = make_defaults(spec(cwd="/", user="root"), image)
    assert (explicit.cwd, explicit.user) == ("/", "root")


def test_the_usual_call_is_encoded_beforehand() -> None:
    defaults = make_defaults(spec(env={"A": "1"}), ImageConfig())
    resolved = resolve_exec(ExecRequest("s", ("true",)), defaults)
    assert isinstance(resolved.env, msgspec.Raw)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(resolved))
    assert sent["env"]["A"] == "1"
    assert sent["env"]["HOME"] == "/root"
    assert sent["timeout_ms"] == 0
    assert set(sent) == {"argv", "env", "cwd", "user", "timeout_ms", "stdin", "stream", "limit", "pty", "rows", "cols"}


@pytest.mark.parametrize(
    ("user", "home"), [("0", "/root"), ("0:0", "/root"), ("1000", "/"), ("1000:5", "/"), ("web", "/home/web")]
)
def test_home_follows_the_user(user: str, home: str) -> None:
    defaults = make_defaults(spec(), ImageConfig())
    env = resolve_exec(ExecRequest("s", ("true",), user=user), defaults).env
    assert isinstance(env, dict)
    assert env["HOME"] == home
    mine = make_defaults(spec(env={"HOME": "/mine"}), ImageConfig())
    env = resolve_exec(ExecRequest("s", ("true",), user=user, pty=True), mine).env
    assert isinstance(env, dict)
    assert (env["HOME"], env["TERM"]) == ("/mine", "xterm-256color")


def test_a_terminal_implies_input_and_streaming() -> None:
    resolved = resolve_exec(ExecRequest("s", ("sh",), pty=True), make_defaults(spec(), ImageConfig()))
    assert (resolved.stdin, resolved.stream, resolved.pty) == (True, True, True)


@pytest.mark.parametrize(
    "request_",
    [
        ExecRequest("s", ()),
        ExecRequest("s", ("a\0",)),
        ExecRequest("s", ("a",), cwd="b"),
        ExecRequest("s", ("a",), user=""),
        ExecRequest("s", ("a",), timeout_s=0),
        ExecRequest("s", ("a",), timeout_s=NAN),
        ExecRequest("s", ("a",), timeout_s=1e12),
        ExecRequest("s", ("a",), limit=OutputLimit(head=-1)),
        ExecRequest("s", ("a",), limit=OutputLimit(tail=1 << 40)),
        ExecRequest("s", ("a",), pty=True, cols=70_000),
        ExecRequest("s", ("a",), env={"A=": "x"}),
    ],
)
def test_bad_commands_are_refused(request_: ExecRequest) -> None:
    with pytest.raises(InvalidArgumentError):
        resolve_exec(request_, make_defaults(spec(), ImageConfig()))


def test_sessions_and_files_are_resolved_too() -> None:
    defaults = make_defaults(spec(cwd="/w", user="web"), ImageConfig())
    assert resolve_session(SessionOpenRequest("s"), defaults).shell == ("/bin/sh",)
    assert resolve_run(SessionRunRequest("s", 1, "true", timeout_s=0.0001)).timeout_ms == 1
    with pytest.raises(InvalidArgumentError):
        resolve_session(SessionOpenRequest("s", shell=()), defaults)
    assert resolve_file(FileRequest("s", "x"), defaults) == {
        "path": "x",
        "user": "web",
        "cwd": "/w",
        "recursive": False,
        "follow": False,
    }
    for bad in (
        FileRequest("s", ""),
        FileRequest("s", "a\0b"),
        FileReadRequest("s", "a", offset=-1),
        FileReadRequest("s", "a", length=-1),
        FileWriteRequest("s", "a", mode=0o10000),
        FileMoveRequest("s", "a", ""),
    ):
        with pytest.raises(InvalidArgumentError):
            resolve_file(bad, defaults)
