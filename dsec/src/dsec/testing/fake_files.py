"""The file operations of a fake sandbox: flat, on a dictionary."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from libdsec.protocol.errors import AlreadyExistsError, PathNotFoundError
from libdsec.protocol.frames import STDOUT

from .fake_call import FakeCall

Answer = dict[str, Any]
Files = dict[str, bytes]
Operation = Callable[[Files, FakeCall, dict[str, Any]], Coroutine[Any, Any, Answer]]


def _find(files: Files, path: str) -> bytes:
    if path not in files:
        raise PathNotFoundError(f"cannot find {path}: no such file", path=path, errno=2)
    return files[path]


async def _stat(files: Files, call: FakeCall, args: dict[str, Any]) -> Answer:
    content = _find(files, args["path"])
    info = {
        "path": args["path"],
        "type": "file",
        "size": len(content),
        "mode": 0o644,
        "uid": 0,
        "gid": 0,
        "mtime_ns": 0,
    }
    return {"info": info}


async def _read(files: Files, call: FakeCall, args: dict[str, Any]) -> Answer:
    content = _find(files, args["path"])[args["offset"] :]
    if args["length"] is not None:
        content = content[: args["length"]]
    await call.write(STDOUT, content)
    call.end_stream(STDOUT)
    return {"size": len(content)}


async def _write(files: Files, call: FakeCall, args: dict[str, Any]) -> Answer:
    path = args["path"]
    if args["exclusive"] and path in files:
        raise AlreadyExistsError(f"cannot write {path}: it exists", path=path)
    parts = []
    while (part := await call.read()) is not None:
        parts.append(part)
    content = b"".join(parts)
    if not call.canceled:
        files[path] = files.get(path, b"") + content if args["append"] else content
    return {"size": len(content)}


async def _remove(files: Files, call: FakeCall, args: dict[str, Any]) -> Answer:
    _find(files, args["path"])
    del files[args["path"]]
    return {}


FILE_OPERATIONS: dict[str, Operation] = {
    "file.stat": _stat,
    "file.read": _read,
    "file.write": _write,
    "file.remove": _remove,
}
