"""The report on disk: `report.json`, read by `dsec rollout show`, and `report.html`, for people."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec

from libdsec.protocol.errors import FileOperationError, InvalidArgumentError, UnsupportedOperationError

from .outcome import SCHEMA, RolloutReport
from .page import render

JSON_NAME, PAGE_NAME = "report.json", "report.html"


def write(report: RolloutReport, directory: Path) -> tuple[Path, Path]:
    """Both files, each whole or not at all.

    :raises FileOperationError: the file system refused.
    """
    make_directory(directory)
    data = msgspec.json.format(msgspec.json.encode(report), indent=1)
    try:
        return (
            _replace(directory / JSON_NAME, data),
            _replace(directory / PAGE_NAME, render(report).encode("utf-8", "replace")),
        )
    except OSError as error:
        raise _refused(directory, error) from error


def make_directory(directory: Path) -> None:
    """For a report to come: better refused before the run than after it.

    :raises FileOperationError: the file system refused.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(directory, error) from error


def _refused(directory: Path, error: OSError) -> FileOperationError:
    return FileOperationError(
        f"cannot write the report in {directory}: {error.strerror}; choose another place with --report",
        path=str(directory),
        errno=error.errno or 0,
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
