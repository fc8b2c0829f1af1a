"""What of an outcome is compared: what the step was asked for, and nothing that another run of it may give otherwise.

Left out are times (of files and of steps), how long things took, pids and numbers of sessions, ids of sandboxes, the
sizes of directories (their file system's own affair), the order in which a directory lists, counts of processes that
the kernel killed or refused, and error messages (their codes are compared).
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Mapping
from typing import Any

import msgspec

from libdsec.log import entries
from libdsec.protocol.calls import METHODS
from libdsec.protocol.errors import ErrorBody, WireError
from libdsec.protocol.exec import ExecAnswer
from libdsec.protocol.files import FileAnswer, FileInfo
from libdsec.protocol.spec import SandboxInfo
from libdsec.protocol.steps import MAX_RECORDED_OUTPUT, Step

Facts = Mapping[str, Any]
"""Name → value. A digest is missing where the bytes are not known."""

_LOOKED_INTO = ("file.list", "file.archive")
"""Methods whose output says the same in several ways."""

_ERROR_DETAILS = ("kind", "errno", "stage")


class Taken:
    """What came on one stream: its digest, and where it is looked into the bytes too, while they are few."""

    def __init__(self, method: str) -> None:
        self._hash = hashlib.sha256()
        self._pieces: list[bytes] | None = [] if method in _LOOKED_INTO else None
        self.size = 0

    def take(self, piece: bytes) -> None:
        self._hash.update(piece)
        self.size += len(piece)
        if self._pieces is not None:
            self._pieces.append(piece)
            if self.size > MAX_RECORDED_OUTPUT:
                self._pieces = None  # more than any record has

    @property
    def data(self) -> bytes | None:
        return None if self._pieces is None else b"".join(self._pieces)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


def recorded(step: Step) -> Facts:
    """Of a step of a log.

    :raises msgspec.DecodeError: its answer is none.
    """
    if step.state == "error":
        return of_error(msgspec.msgpack.decode(step.answer, type=ErrorBody))
    answer = msgspec.msgpack.decode(step.answer, type=METHODS[step.method][1])
    facts = _of_answer(answer)
    if _arbitrary(answer):
        return facts
    for name, record in (("stdout", step.stdout), ("stderr", step.stderr)):
        digest = None if record.data is None else hashlib.sha256(record.data).hexdigest()
        facts |= _of_output(step.method, name, record.size, digest, record.data)
    return facts


def given(method: str, answer: msgspec.Struct, stdout: Taken, stderr: Taken) -> Facts:
    """Of an answer that came now."""
    facts = _of_answer(answer)
    if _arbitrary(answer):
        return facts
    for name, taken in (("stdout", stdout), ("stderr", stderr)):
        facts |= _of_output(method, name, taken.size, taken.digest, taken.data)
    return facts


def of_error(body: ErrorBody) -> Facts:
    facts: dict[str, Any] = {"ended": "error", "code": body.code}
    facts |= {name: body.details[name] for name in _ERROR_DETAILS if name in body.details}
    return facts


def differences(before: Facts, now: Facts) -> dict[str, tuple[Any, Any]]:
    """What is not the same: name → (before, now). Of two ends of different kinds the end alone."""
    if before.get("ended") != now.get("ended"):
        return {"ended": (before.get("ended"), now.get("ended"))}
    return {
        name: (before.get(name), now.get(name))
        for name in dict.fromkeys((*before, *now))
        if before.get(name) != now.get(name) and not (name.endswith("sha256") and not (name in before and name in now))
    }


def _of_answer(answer: msgspec.Struct) -> dict[str, Any]:
    if isinstance(answer, ExecAnswer):
        return {
            "ended": answer.ended,
            "exit_code": answer.exit_code,
            "signal": answer.signal,
            "session_ended": answer.session_ended,
            "stdout_total": answer.stdout.total,
            "stderr_total": answer.stderr.total,
        }
    if isinstance(answer, FileAnswer):
        facts: dict[str, Any] = {"ended": "result", "entries": answer.entries, "truncated": answer.truncated}
        return facts if answer.info is None else facts | {"info": _of_file(answer.info)}
    if isinstance(answer, SandboxInfo):
        return {"ended": "result", "state": answer.state, "cause": answer.cause}
    return {"ended": "result"}


def _arbitrary(answer: msgspec.Struct) -> bool:
    """A listing that was cut has whichever entries came first."""
    return isinstance(answer, FileAnswer) and answer.truncated


def _of_output(method: str, name: str, size: int, digest: str | None, data: bytes | None) -> dict[str, Any]:
    """Of listings and archives what they say is compared, not how it was written down."""
    if method in _LOOKED_INTO:
        if name == "stderr" or data is None:
            return {}
        said = _entries(data) if method == "file.list" else _members(data)
        if said is not None:
            return {f"{name}_sha256": hashlib.sha256(msgspec.msgpack.encode(said)).hexdigest()}
    # of a command the answer has how much it printed, kept or not
    facts: dict[str, Any] = {} if method in ("exec", "session.run") else {f"{name}_size": size}
    return facts if digest is None else facts | {f"{name}_sha256": digest}


def _of_file(info: FileInfo) -> dict[str, Any]:
    found = msgspec.to_builtins(info)
    del found["mtime_ns"]
    if info.type == "directory":
        del found["size"], found["nlink"]
    return dict(found)


def _entries(data: bytes) -> list[Any] | None:
    """Of a file.list's arrays; None where they are none."""
    try:
        found = entries(data)
    except WireError:
        return None
    return [_of_file(info) for info in sorted(found, key=lambda info: info.path)]


def _members(data: bytes) -> list[Any] | None:
    """Of a tar; None where it is none."""
    found = []
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                digest = "" if content is None else hashlib.sha256(content.read()).hexdigest()
                kind = member.type.decode("ascii", "replace")
                owner = (member.mode, member.uid, member.gid)
                found.append((member.name, kind, *owner, member.linkname, digest))
    except (tarfile.TarError, OSError, ValueError, EOFError):
        return None
    return [[part if isinstance(part, int) else os.fsencode(part) for part in member] for member in sorted(found)]
