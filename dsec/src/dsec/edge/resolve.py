"""From what a client asks to what init is told: defaults resolved, values checked (docs/wire.md, edge ↔ init). Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from libdsec.protocol.environment import ImageConfig
from libdsec.protocol.errors import InvalidArgumentError
from libdsec.protocol.exec import ExecRequest, OutputLimit, SessionOpenRequest, SessionRunRequest
from libdsec.protocol.spec import SandboxSpec

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MAX_OUTPUT_LIMIT = 8 * 1024 * 1024
"""Bytes of head and tail together that a caller may have kept of a stream; PID 1 keeps no more."""
MAX_TIMEOUT_S = 366 * 86_400.0

_encode = msgspec.msgpack.Encoder().encode


class Defaults(msgspec.Struct, frozen=True):
    """What a sandbox gives to a call that does not say otherwise."""

    env: dict[str, str]
    """Without HOME, unless somebody set it."""
    cwd: str
    user: str
    encoded_env: msgspec.Raw
    """The whole environment of a call by the default user that adds nothing: by far the most calls."""
    image: ImageConfig
    """What the image said, so that the same can be made again from the spec."""


class ResolvedExec(msgspec.Struct, frozen=True):
    argv: tuple[str, ...]
    env: dict[str, str] | msgspec.Raw
    cwd: str
    user: str
    timeout_ms: int
    stdin: bool
    stream: bool
    limit: OutputLimit
    pty: bool
    rows: int
    cols: int


class ResolvedSession(msgspec.Struct, frozen=True):
    shell: tuple[str, ...]
    env: dict[str, str] | msgspec.Raw
    cwd: str
    user: str


class ResolvedRun(msgspec.Struct, frozen=True):
    session: int
    command: str
    timeout_ms: int
    limit: OutputLimit


def make_defaults(spec: SandboxSpec, image: ImageConfig) -> Defaults:
    """Image below sandbox, both above the platform's own."""
    env = {"PATH": DEFAULT_PATH, **image.env, **spec.env}
    user = spec.user if spec.user is not None else image.user
    cwd = spec.cwd if spec.cwd is not None else image.cwd
    return Defaults(env, cwd, user, msgspec.Raw(_encode(_with_home(env, user))), image)


def resolve_exec(request: ExecRequest, defaults: Defaults) -> ResolvedExec:
    """:raises InvalidArgumentError: names the field."""
    _check_words("argv", request.argv)
    user = _user(request.user, defaults)
    interactive = request.pty
    if interactive:
        _check_size(request.rows, request.cols)
    return ResolvedExec(
        request.argv,
        _environment(request.env, user, defaults, interactive),
        _directory(request.cwd, defaults),
        user,
        timeout_ms(request.timeout_s),
        request.stdin or interactive,
        request.stream or interactive,
        _limit(request.limit),
        interactive,
        request.rows,
        request.cols,
    )


def resolve_session(request: SessionOpenRequest, defaults: Defaults) -> ResolvedSession:
    """:raises InvalidArgumentError: names the field."""
    _check_words("shell", request.shell)
    user = _user(request.user, defaults)
    env = _environment(request.env, user, defaults, False)
    return ResolvedSession(request.shell, env, _directory(request.cwd, defaults), user)


def resolve_run(request: SessionRunRequest) -> ResolvedRun:
    """:raises InvalidArgumentError: names the field."""
    _check_text("command", request.command)
    return ResolvedRun(request.session, request.command, timeout_ms(request.timeout_s), _limit(request.limit))


def resolve_file(request: msgspec.Struct, defaults: Defaults) -> dict[str, Any]:
    """The fields of a file request, with user and cwd in and the sandbox out.

    :raises InvalidArgumentError: names the field.
    """
    fields: dict[str, Any] = msgspec.structs.asdict(request)
    del fields["sandbox"]
    for name in ("path", "to"):
        if name in fields:
            if not fields[name]:
                raise InvalidArgumentError(f"cannot use an empty {name}", field=name)
            _check_text(name, fields[name])
    for name in ("offset", "length", "limit"):
        value = fields.get(name)
        if value is not None and value < 0:
            raise InvalidArgumentError(f"cannot use {name} {value}: it must not be negative", field=name)
    mode = fields.get("mode", 0)
    if not 0 <= mode <= 0o7777:
        raise InvalidArgumentError(f"cannot use mode {mode:#o}: it must be permission bits", field="mode")
    fields["user"] = _user(fields["user"], defaults)
    fields["cwd"] = defaults.cwd
    return fields


def check_environment(env: dict[str, str]) -> None:
    """:raises InvalidArgumentError: a name or value that no process can have."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise InvalidArgumentError(
                f"cannot set environment variable {name[:100]!r}: a name is not empty, without '=' and zero bytes, "
                "a value has no zero byte",
                field="env",
            )


def check_directory(cwd: str) -> None:
    """:raises InvalidArgumentError: not an absolute path."""
    if not cwd.startswith("/"):
        raise InvalidArgumentError(f"cannot use working directory {cwd[:200]!r}: it must be absolute", field="cwd")
    _check_text("cwd", cwd)


def check_user(user: str) -> None:
    """:raises InvalidArgumentError: nothing that could be a user."""
    if not user or len(user) > 256:
        raise InvalidArgumentError(f"cannot use user {user[:64]!r}: give a name, a uid, or user:group", field="user")
    _check_text("user", user)


def timeout_ms(seconds: float | None) -> int:
    """:raises InvalidArgumentError: not a time that can pass."""
    if seconds is None:
        return 0
    if not (math.isfinite(seconds) and 0 < seconds <= MAX_TIMEOUT_S):
        raise InvalidArgumentError(
            f"cannot use timeout {seconds}: it must be above 0 and at most {MAX_TIMEOUT_S:g} s", field="timeout_s"
        )
    return max(1, round(seconds * 1000))


def _environment(added: dict[str, str], user: str, defaults: Defaults, terminal: bool) -> dict[str, str] | msgspec.Raw:
    if not added and user == defaults.user and not terminal:
        return defaults.encoded_env
    check_environment(added)
    env = {**defaults.env, **added}
    if terminal and "TERM" not in env:
        env["TERM"] = "xterm-256color"
    return _with_home(env, user)


def _with_home(env: dict[str, str], user: str) -> dict[str, str]:
    """HOME by the user's name, since the sandbox's own passwd is not for us to read: root's and everybody's usual
    places."""
    if "HOME" in env:
        return env
    name = user.partition(":")[0]
    home = "/root" if name in ("root", "0") else "/" if name.isdigit() else f"/home/{name}"
    return {**env, "HOME": home}


def _user(asked: str | None, defaults: Defaults) -> str:
    if asked is None:
        return defaults.user
    check_user(asked)
    return asked


def _directory(asked: str | None, defaults: Defaults) -> str:
    if asked is None:
        return defaults.cwd
    check_directory(asked)
    return asked


def _limit(limit: OutputLimit) -> OutputLimit:
    if limit.head < 0 or limit.tail < 0 or limit.head + limit.tail > MAX_OUTPUT_LIMIT:
        raise InvalidArgumentError(
            f"cannot keep {limit.head} + {limit.tail} bytes of output: neither may be negative, together they may be "
            f"at most {MAX_OUTPUT_LIMIT}; stream the output if you need all of it",
            field="limit",
        )
    return limit


def _check_words(field: str, words: Iterable[str]) -> None:
    count = 0
    for word in words:
        count += 1
        if "\0" in word:
            _check_text(field, word)
    if not count:
        raise InvalidArgumentError(f"cannot run nothing: {field} is empty", field=field)


def _check_text(field: str, text: str) -> None:
    if "\0" in text:
        raise InvalidArgumentError(f"cannot use {field} {text[:100]!r}: it contains a zero byte", field=field)


def _check_size(rows: int, cols: int) -> None:
    if not (1 <= rows <= 65_535 and 1 <= cols <= 65_535):
        raise InvalidArgumentError(
            f"cannot make a terminal of {rows} x {cols}: each must lie between 1 and 65535", field="rows"
        )
