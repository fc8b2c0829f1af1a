"""The report on disk: `report.json`, read by `dsec rollout show`, and `report.html`, for people."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec

from libdsec.protocol.errors import InvalidArgumentError, UnsupportedOperationError

from .outcome import SCHEMA, RolloutReport
from .page import render

JSON_NAME, PAGE_NAME = "report.json", "report.html"


def write(report: RolloutReport, directory: Path) -> tuple[Path, Path]:
    """Both files, each whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    data = msgspec.json.format(msgspec.json.encode(report), indent=1)
    return (
        _replace(directory / JSON_NAME, data),
        _replace(directory / PAGE_NAME, render(report).encode("utf-8", "replace")),
    )


def _replace(path: Path, data: bytes) -> Path:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return path


def read(path: Path) -> RolloutReport:
    """From the directory that `write` filled, or the JSON file itself.

    :raises InvalidArgumentError: not there, or not a report.
    :raises UnsupportedOperationError: written by a newer version.
    """
    file = path / JSON_NAME if path.is_dir() else path
    try:
        data = file.read_bytes()
        schema = msgspec.json.decode(data, type=_Schema).schema
        if schema > SCHEMA:
            raise UnsupportedOperationError(f"cannot read {file}: it has schema {schema}, this version reads {SCHEMA}")
        return msgspec.json.decode(data, type=RolloutReport)
    except OSError as error:
        raise InvalidArgumentError(f"cannot read {file}: {error.strerror}", field="report") from None
    except msgspec.DecodeError as error:
        raise InvalidArgumentError(f"cannot read {file}: not a rollout report: {error}", field="report") from None


class _Schema(msgspec.Struct):
    schema: int
