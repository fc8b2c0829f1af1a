"""A build's progress: a moving line on a terminal, a line a stage elsewhere. Of what is over in a tenth of a second
the server tells nothing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from libdsec.protocol.environment import BuildProgress

from .output import amount

_STAGES = {
    "fetch": "fetching",
    "write": "writing layers",
    "merge": "merging layers",
    "pack": "packing layers",
    "send": "sending",
    "publish": "publishing",
}


@contextlib.contextmanager
def shown(name: str) -> Iterator[Callable[[BuildProgress], None]]:
    """What to tell the progress to while the block runs."""
    if not sys.stderr.isatty():
        yield _lines(name)
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{name}: starting") as status:
        yield lambda news: status.update(f"{name}: {_text(news)}")


def _lines(name: str) -> Callable[[BuildProgress], None]:
    stages: set[str] = set()

    def show(news: BuildProgress) -> None:
        if news.stage not in stages:
            stages.add(news.stage)
            sys.stderr.write(f"{name}: {_STAGES.get(news.stage, news.stage)}\n")

    return show


def _text(news: BuildProgress) -> str:
    of = f" of {amount(news.bytes_total)}" * bool(news.bytes_total)
    done = [amount(news.bytes_done) + of] * bool(news.bytes_done) + [f"{news.files_done} files"] * bool(news.files_done)
    return " ".join([_STAGES.get(news.stage, news.stage), *([f"({', '.join(done)})"] if done else [])])
