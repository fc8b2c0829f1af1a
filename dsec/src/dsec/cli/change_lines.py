"""How `dsec diff` and `dsec image diff` write a change."""

from __future__ import annotations

from typing import Final

from libdsec.protocol.images import Change

from .output import printable

_SIGNS: Final = {"added": "A", "changed": "C", "removed": "D"}


def change_line(change: Change) -> str:
    """A sign and the path, which of a directory ends with a slash."""
    slash = "/" * (change.type == "directory" and change.path != "/")
    return f"{_SIGNS[change.kind]} {printable(change.path)}{slash}"
