"""`dsec bench`: the floor, the other runtimes and us, side by side."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dsec.bench import page, table, words
from dsec.bench.figures import Report
from dsec.bench.ground import Options
from dsec.bench.run import BENCHES, run

from .options import JsonOption
from .outcome import execute_alone, warn
from .output import emit

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    help="Measure the floor, the other runtimes and DSec in turn, in one run.",
)

Samples = Annotated[int | None, typer.Option("-n", "--samples", help="How many of ours; others by their speed.")]
Image = Annotated[str | None, typer.Option("--image", help="NAME:TAG of a base image; default: the host's own.")]
Private = Annotated[
    bool, typer.Option("--private/--shared", help="A node of its own, or the one that runs (its images, its memory).")
]
Scratch = Annotated[str, typer.Option("--scratch", help="Where everything is made, and taken away again.")]
Page = Annotated[Path | None, typer.Option("--page", help="Write the tables between this page's markers.")]

_PAGE = Path("docs/performance.md")


def _register(name: str) -> None:
    paragraphs = (BENCHES[name].__doc__ or "").split("\n\n")
    text = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    text += f"\n\n\b\ndsec bench {name}\ndsec bench {name} --samples 20 --json"

    @app.command(name, help=text, short_help=words.ABOUT[name])
    def one(
        samples: Samples = None,
        json: JsonOption = False,
        image: Image = None,
        private: Private = True,
        scratch: Scratch = "/var/tmp",
    ) -> None:
        _main([name], samples, _options(image, private, scratch), json, None)


for _name in BENCHES:
    _register(_name)


@app.command("all")
def every(
    json: JsonOption = False,
    image: Image = None,
    private: Private = True,
    scratch: Scratch = "/var/tmp",
    page: Page = None,
) -> None:
    """Run each bench on one ground, and write docs/performance.md's tables.

    \b
    dsec bench all
    dsec bench all --page /tmp/performance.md

    Without --page the tables go into docs/performance.md of the current directory, if there is one.
    """
    where = page or (_PAGE if _PAGE.exists() else None)
    _main(list(BENCHES), None, _options(image, private, scratch), json, where)


def _options(image: str | None, private: bool, scratch: str) -> Options:
    state_dir = os.environ.get("DSEC_STATE_DIR") or Options().state_dir
    return Options(image=image, private=private, scratch=scratch, state_dir=state_dir)


def _main(names: list[str], samples: int | None, options: Options, json: bool, where: Path | None) -> None:
    async def work() -> None:
        reports = await _measure(names, samples, options, json)
        if json:
            emit(reports[0] if len(names) == 1 else reports)
        if where is not None:
            page.write(where, reports)

    execute_alone(json, work)


async def _measure(names: list[str], samples: int | None, options: Options, json: bool) -> list[Report]:
    """Ctrl-C cancels it, and so does SIGTERM: the ground gives everything back."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
    reports = []
    out, err = Console(), Console(stderr=True)
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > cores / 4:
        warn(f"this machine has other work (load {load:.1f} on {cores} cores): the figures will say less")
    with err.status("starting") as status:
        async with aclosing(run(names, samples, options, lambda text: status.update(text))) as running:
            async for report in running:
                reports.append(report)
                if not json:
                    out.print(table.render(report))
    return reports
