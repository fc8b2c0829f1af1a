"""Write frames.json (frames described) and frames.bin (the same frames as bytes, one after the other).

    python tests/golden/make.py

Both halves of the platform must read the bytes into the described frames and write the described frames into the same
bytes. Run it only to add frames: a byte of an old frame that changes is a new generation (docs/wire.md).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from libdsec.protocol import calls, errors, exec, files, frames
from libdsec.protocol.frames import Kind

HERE = Path(__file__).parent


def message(kind: Kind, call: int, type_name: str, value: Any) -> dict[str, Any]:
    """A control frame whose payload is a map."""
    described = {"type": type_name, "message": msgspec.to_builtins(value)}
    return {"kind": kind.name, "call": call, "stream": 0, "end": False, "payload": described}


def raw(kind: Kind, call: int, stream: int, end: bool, payload: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind.name, "call": call, "stream": stream, "end": end, "payload": payload}


def described() -> list[dict[str, Any]]:
    hello = calls.Hello(frames.GENERATION, "edge", "0123456789abcdef", "0.1.0", frames.MAX_PAYLOAD)
    bare = calls.Hello(frames.GENERATION, "init")
    command = {
        "argv": ["/bin/sh", "-c", "echo 'hé' && exit 3"],
        "env": {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "EMPTY": ""},
        "cwd": "/",
        "user": "1000:1000",
        "timeout_ms": 5_000_000_000,
        "stdin": True,
        "stream": False,
        "limit": {"head": 524288, "tail": 0},
        "pty": False,
        "rows": 24,
        "cols": 80,
    }
    ended = exec.ExecAnswer("exited", 3, None, 1250, exec.OutputInfo(200_000_000, 524288, 0), oom_kills=1)
    killed = exec.ExecAnswer("signaled", None, 9, 70_000, pids_refused=300, untrusted=True, session_ended=True)
    info = files.FileInfo("a/é", "symlink", 1 << 40, 0o777, 0, 65535, -1_500_000_000, 1, "../b")
    failed = errors.CommandNotStartedError("cannot start", errno=-2, kind="not_found", stage="exec")
    return [
        message(Kind.HELLO, 0, "Hello", hello),
        message(Kind.HELLO, 0, "Hello", bare),
        message(Kind.CALL, 1, "Call", {"method": "ping", "args": {}}),
        message(Kind.CALL, 2, "Call", {"method": "exec", "args": command}),
        message(Kind.CALL, (1 << 64) - 1, "Call", {"method": "sandbox.kill", "args": {"id": "a" * 24}}),
        message(Kind.RESULT, 1, "Empty", {}),
        message(Kind.RESULT, 2, "ExecAnswer", ended),
        message(Kind.RESULT, 3, "ExecAnswer", killed),
        message(Kind.RESULT, 4, "FileAnswer", files.FileAnswer(127, 128, True, info)),
        message(Kind.ERROR, 5, "ErrorBody", failed.body()),
        message(Kind.ERROR, 6, "ErrorBody", errors.ErrorBody("internal", "")),
        raw(Kind.DATA, 2, frames.STDIN, True, {"hex": ""}),
        raw(Kind.DATA, 2, frames.STDOUT, False, {"hex": "00ff0a80"}),
        raw(Kind.DATA, 2, frames.STDERR, True, {"hex": b"last".hex()}),
        raw(Kind.DATA, 256, 65535, False, {"byte": 97, "count": frames.DATA_CHUNK}),
        raw(Kind.DATA, 257, frames.STDOUT, True, {"byte": 0, "count": frames.MAX_PAYLOAD}),
        message(Kind.EVENT, 2, "SignalRequest", exec.SignalRequest(15, True)),
        message(Kind.EVENT, 2, "ResizeRequest", exec.ResizeRequest(50, 132)),
        message(Kind.EVENT, 0, "Exited", {"event": "exited", "id": "b" * 24, "status": 137}),
        raw(Kind.CREDIT, 2, frames.STDOUT, False, {"credit": 65536}),
        raw(Kind.CREDIT, 2, frames.STDIN, False, {"credit": (1 << 32) - 1}),
        raw(Kind.CANCEL, 2, 0, False, {"hex": ""}),
        raw(Kind.ACK, 2, 0, False, {"hex": ""}),
    ]


def payload(described: dict[str, Any]) -> bytes:
    """The bytes of a described payload."""
    if "message" in described:
        return msgspec.msgpack.encode(described["message"])
    if "credit" in described:
        return int(described["credit"]).to_bytes(4, "little")
    if "count" in described:
        return bytes([described["byte"]]) * int(described["count"])
    return bytes.fromhex(described["hex"])


def main() -> None:
    frames_described = described()
    encoded = [
        frames.encode(Kind[f["kind"]], f["call"], payload(f["payload"]), f["stream"], frames.END if f["end"] else 0)
        for f in frames_described
    ]
    (HERE / "frames.json").write_text(json.dumps(frames_described, indent=1, ensure_ascii=False) + "\n")
    (HERE / "frames.bin").write_bytes(b"".join(encoded))


if __name__ == "__main__":
    main()
