"""What a person sees while a run goes on: one live block on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .outcome import Outcome

PLAIN_EVERY_S = 5.0
_RECENT = 5


class Tally:
    """A `Watcher` that counts."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self.results: Counter[str] = Counter()
        self.begun = self.live = self.created_count = 0
        self.faults: list[str] = []
        self._clock = clock
        self._start = clock()

    def began(self, task: str) -> None:
        self.begun += 1

    def created(self, task: str) -> None:
        self.live += 1
        self.created_count += 1

    def ended(self, outcome: Outcome) -> None:
        self.results[outcome.result] += 1
        if outcome.sandbox is not None:
            self.live -= 1
        if outcome.fault is not None:
            self.faults = [*self.faults, f"{outcome.task}: {outcome.fault.code}: {outcome.fault.message}"][-_RECENT:]

    @property
    def done(self) -> int:
        return self.results.total()

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._start

    def words(self) -> str:
        """The state in one line."""
        r = self.results
        rate = self.created_count / self.elapsed_s if self.elapsed_s > 0.1 else 0.0
        return (
            f"{self.done}/{self.total} done, {r['passed']} passed, {r['failed']} failed, {r['error']} errors, "
            f"{self.live} in flight, {rate:.1f} sandboxes/s, {self.elapsed_s:.0f} s"
        )


class _Block:
    """The live block, drawn anew each time rich asks."""

    def __init__(self, title: str, tally: Tally) -> None:
        self._title, self._tally = title, tally

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        tally, r = self._tally, self._tally.results
        line = Table.grid(padding=(0, 2))
        rate = tally.created_count / tally.elapsed_s if tally.elapsed_s > 0.1 else 0.0
        line.add_row(
            Text(self._title, style="bold"),
            ProgressBar(total=max(tally.total, 1), completed=tally.done, width=min(40, options.max_width // 4)),
            Text(f"{tally.done}/{tally.total}"),
            Text(f"{r['passed']} passed", style="green"),
            Text(f"{r['failed']} failed", style="yellow" if r["failed"] else "dim"),
            Text(f"{r['error']} errors", style="red" if r["error"] else "dim"),
            Text(f"{tally.live} in flight", style="cyan"),
            Text(f"{rate:.1f}/s"),
        )
        yield line
        for fault in tally.faults:
            yield Text("  " + fault.splitlines()[0], style="red", overflow="ellipsis", no_wrap=True)


class Display(Tally):
    """A tally that shows itself while it is entered."""

    def __init__(self, console: Console, title: str, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(total, clock)
        self._console, self._title = console, title
        self._live = Live(_Block(title, self), console=console, refresh_per_second=8) if console.is_terminal else None
        self._last_line = 0.0

    def __enter__(self) -> Self:
        if self._live is None:
            self._line()
        else:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is None:
            self._line()
        else:
            self._live.stop()

    def ended(self, outcome: Outcome) -> None:
        super().ended(outcome)
        if self._live is None and self.elapsed_s - self._last_line >= PLAIN_EVERY_S:
            self._last_line = self.elapsed_s
            self._line()

    def _line(self) -> None:
        self._console.print(f"{self._title}: {self.words()}", markup=False, highlight=False, soft_wrap=True)
