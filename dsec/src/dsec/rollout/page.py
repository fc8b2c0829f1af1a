"""The report as one self-contained HTML page.

Everything a sandbox or an agent said is hostile: it is escaped here and the page's policy allows nothing to be fetched
and no script but the few lines below, known by their hash.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import html
import importlib.resources
from collections.abc import Sequence

from . import charts
from .outcome import RESULTS, Outcome, Quantiles, RolloutReport, Stage, Totals, durations, in_flight, quantiles, totals

_SCRIPT = """
const show = () => {
  const found = document.getElementById(location.hash.slice(1));
  if (found) { found.open = true; found.scrollIntoView(); }
};
addEventListener("hashchange", show);
show();
"""

_STAGES: tuple[tuple[Stage, str], ...] = (
    ("create", "create"),
    ("prepare", "files"),
    ("act", "agent"),
    ("grade", "run"),
    ("stop", "stop"),
)

_WORDS = {"passed": "passed", "failed": "failed", "error": "error", "not_run": "not run"}


def _text(value: str) -> str:
    """Escaped; control characters, which a browser may drop or obey, are shown as pictures of themselves."""
    return html.escape("".join(c if c in "\n\t" or c.isprintable() else _picture(c) for c in value))


def _picture(control: str) -> str:
    return chr(0x2400 + ord(control)) if control < " " else "\N{REPLACEMENT CHARACTER}"


def _tile(value: str, name: str, kind: str = "") -> str:
    return f'<div class="tile {kind}"><b>{value}</b><span>{name}</span></div>'


def _pair(pair: Quantiles | None) -> str:
    return "–" if pair is None else f"{charts.number(pair.p50)} / {charts.number(pair.p99)}"


def _tiles(sums: Totals) -> str:
    return '<div class="tiles">' + "".join(
        (
            _tile(f"{sums.passed:,}", "passed", "passed" if sums.passed else ""),
            _tile(f"{sums.failed:,}", "failed", "failed" if sums.failed else ""),
            _tile(f"{sums.errors:,}", "errors", "error" if sums.errors else ""),
            _tile(charts.number(sums.sandboxes_per_s), "sandboxes / s"),
            _tile(_pair(sums.create_ms), "create ms, p50 / p99"),
            _tile(_pair(sums.run_ms), "run ms, p50 / p99"),
        )
    ) + "</div>"  # fmt: skip


def _share(report: RolloutReport) -> str:
    parts = []
    for result in RESULTS:
        count = sum(o.result == result for o in report.outcomes)
        if count:
            parts.append(f'<i class="{result}" style="flex:{count}" title="{_WORDS[result]}: {count}"></i>')
    return f'<div class="share">{"".join(parts)}</div>'


def _distribution(report: RolloutReport, stage: Stage, title: str, words: str) -> str:
    values = durations(report, stage)
    pair = quantiles(values)
    if pair is None:
        picture = "<p>nothing came this far</p>"
    else:
        marks = [
            charts.Mark(pair.p50, f"p50 {charts.number(pair.p50)} ms"),
            charts.Mark(pair.p99, f"p99 {charts.number(pair.p99)} ms"),
        ]
        picture = charts.histogram(values, "ms", f"distribution of {title}", marks)
    return f'<section class="card"><h2>{title}</h2><p class="sub">{words}</p>{picture}</section>'


def _timeline(report: RolloutReport) -> str:
    picture = charts.level(in_flight(report), report.elapsed_s, "s", "sandboxes in flight over time")
    words = f"sandboxes that exist at a moment; at most {report.parallel} rollouts at a time"
    return f'<section class="card"><h2>Sandboxes in flight</h2><p class="sub">{words}</p>{picture}</section>'


def _lanes(report: RolloutReport) -> str:
    started = sorted((o for o in report.outcomes if o.spans), key=lambda o: o.spans[0].start)
    rows = [
        charts.Lane(
            o.task + ": " + ", ".join(f"{s.stage} {(s.end - s.start) * 1e3:.1f} ms" for s in o.spans),
            tuple(charts.Bar(s.start, s.end, s.stage) for s in o.spans),
        )
        for o in started
    ]
    legend = "".join(f'<span><i class="k-{stage}"></i>{word}</span>' for stage, word in _STAGES)
    picture = charts.lanes(rows, report.elapsed_s, "s", "what each rollout was doing")
    return (
        '<section class="card"><h2>Each rollout</h2><p class="sub">one line a rollout, in the order of their starts</p>'
        f'<div class="legend">{legend}</div>{picture}</section>'
    )


def _map(report: RolloutReport) -> str:
    squares = "".join(
        f'<a class="{o.result}" href="#task-{i}" title="{_text(o.task)}: {_WORDS[o.result]}"></a>'
        for i, o in enumerate(report.outcomes)
    )
    words = '<h2>Tasks</h2><p class="sub">a square a task; click for its output</p>'
    return f'<section class="card">{words}<div class="map">{squares}</div></section>'


def _ms(outcome: Outcome, stage: Stage) -> str:
    value = outcome.duration_ms(stage)
    return "" if value is None else f"{charts.number(value)} ms"


def _blocks(outcome: Outcome) -> str:
    faults = [f for f in (outcome.fault, outcome.left_behind) if f is not None]
    texts = [
        *((f"{fault.code} while in stage {fault.stage}", fault.message) for fault in faults),
        ("answer", outcome.answer),
        ("standard output" + (" (cut)" if outcome.truncated else ""), outcome.stdout),
        ("standard error", outcome.stderr),
    ]
    shown = [f"<h3>{_text(name)}</h3><pre>{_text(text)}</pre>" for name, text in texts if text]
    sandbox = f'<p class="sub">sandbox {outcome.sandbox}, attempts {outcome.attempts}</p>' if outcome.sandbox else ""
    return sandbox + "".join(shown) or '<p class="sub">nothing was printed</p>'


def _details(report: RolloutReport) -> str:
    rows = []
    for i, outcome in enumerate(report.outcomes):
        how = outcome.fault.message if outcome.fault else outcome.how
        rows.append(
            f'<details id="task-{i}"><summary><span>{_text(outcome.task)}</span>'
            f'<span class="{outcome.result}"><i class="dot"></i>{_WORDS[outcome.result]}</span>'
            f'<span class="soft">{_text(how)}</span><span class="r">{_ms(outcome, "create")}</span>'
            f'<span class="r">{_ms(outcome, "grade")}</span></summary>'
            f'<div class="more">{_blocks(outcome)}</div></details>'
        )
    head = (
        '<div class="head"><span>task</span><span>result</span><span>how it ended</span>'
        '<span class="r">create</span><span class="r">run</span></div>'
    )
    return f'<section class="card"><h2>Results</h2>{head}{"".join(rows)}</section>'


def _notes(report: RolloutReport, sums: Totals) -> str:
    notes = []
    if report.interrupted:
        notes.append(f"The run was interrupted: {sums.not_run} of {sums.tasks} tasks were not run to their end.")
    if sums.left_behind:
        notes.append(f"{sums.left_behind} sandboxes could not be stopped.")
    return "".join(f'<p class="note">{note}</p>' for note in notes)


def _document(title: str, body: Sequence[str]) -> str:
    script_hash = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script_hash}'"
    style = importlib.resources.files(__package__).joinpath("page.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{style}</style></head><body><main>"
        + "\n".join(body)
        + f"</main><script>{_SCRIPT}</script></body></html>\n"
    )


def render(report: RolloutReport) -> str:
    """The page."""
    sums = totals(report)
    when = datetime.datetime.fromtimestamp(report.started_at, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    title = f"{_text(report.environment)}, agent {_text(report.agent)}: {sums.passed} of {sums.tasks} passed"
    body = [
        f"<h1>{title}</h1>",
        f"<p>{_text(report.image)} · {when} · {charts.number(report.elapsed_s)} s · {report.parallel} at a time</p>",
        _notes(report, sums),
        _tiles(sums),
        _share(report),
        '<div class="cards">',
        _distribution(report, "create", "Create", "from the call to a sandbox that answers"),
        _distribution(report, "grade", "Run", "the grading command, from the call to its result"),
        "</div>",
        _timeline(report),
        _lanes(report),
        _map(report),
        _details(report),
    ]
    return _document(title, body)
