"""A server without a command log, so that the log's cost can be told. Only a bench starts it: it keeps no promise.

python -m dsec.bench.unlogged --state-dir DIRECTORY --run-dir DIRECTORY
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from dsec.commandlog import Begun, CommandLog, OpenStep
from dsec.config import NodeConfig, load
from dsec.journal import Journal
from dsec.serve import main
from dsec.serve.node import open_log


class _Forgotten(OpenStep):
    """A step that nobody writes down."""

    __slots__ = ()

    def __init__(self, method: str, sandbox: str, opaque: str) -> None:
        self.method, self.sandbox, self.opaque = method, sandbox, opaque
        self.track, self.n = "forgotten", 0

    @property
    def key(self) -> str:
        return ""

    def when_begun(self, callback: Any, failed: Any) -> None:
        callback()

    def end(
        self,
        *,
        state: Any,
        answer: bytes,
        then: Any,
        failed: Any,
        stdout: Sequence[bytes] = (),
        stderr: Sequence[bytes] = (),
        input_digest: bytes = b"",
        opaque: str = "",
    ) -> None:
        then()

    def take_digest(self) -> None: ...

    def withdraw(self, then: Any) -> None:
        then()


class _Unlogged(CommandLog):
    def begin(self, *, method: str, sandbox: str, opaque: str = "", **_: Any) -> Begun:
        return Begun(_Forgotten(method, sandbox, opaque))


def _unlogged(config: NodeConfig, journal: Journal) -> CommandLog:
    log = open_log(config, journal)
    log.__class__ = _Unlogged
    return log


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--state-dir", required=True)
    parser.add_argument("--run-dir", required=True)
    main(load(**vars(parser.parse_args())), log_of=_unlogged)
