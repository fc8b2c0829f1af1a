"""Small SVG pictures for the report: a histogram, a level over time, lanes. Strings out of numbers, no I/O.

Colours are CSS classes of the page (so that dark and light are its matter); every text that is not ours is escaped.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

import msgspec

HALF, WHOLE = 520, 1060
"""Pixels: of a picture that shares its row with another, and of one that has the row."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 14, 30


class Mark(msgspec.Struct, frozen=True):
    """A vertical line with a label."""

    at: float
    label: str


class Bar(msgspec.Struct, frozen=True):
    """A piece of a lane; `kind` becomes a CSS class of the page's own."""

    start: float
    end: float
    kind: str


class Lane(msgspec.Struct, frozen=True):
    title: str
    bars: tuple[Bar, ...]


def nice_step(span: float, ticks: int) -> float:
    """1, 2 or 5 times a power of ten, so that about `ticks` of them cover `span`."""
    if span <= 0:
        return 1.0
    raw = span / ticks
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)


def number(value: float) -> str:
    """Short and without noise: 0.25, 3.1, 42, 1,300."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2g}" if value < 1 else f"{value:.3g}"


class _Frame:
    """Axes of one picture: data to pixels, grid and ticks."""

    def __init__(self, height: int, x_max: float, y_max: float, unit: str, width: int) -> None:
        self.height, self.width = height, width
        self.x_max, self.y_max, self._unit = max(x_max, 1e-9), max(y_max, 1e-9), unit

    def x(self, value: float) -> float:
        return round(_LEFT + (self.width - _LEFT - _RIGHT) * min(value / self.x_max, 1.0), 2)

    def y(self, value: float) -> float:
        return round(self.height - _BOTTOM - (self.height - _TOP - _BOTTOM) * min(value / self.y_max, 1.0), 2)

    def axes(self, vertical: bool = True) -> list[str]:
        parts = []
        if vertical:
            step = max(1.0, nice_step(self.y_max, 4))
            for i in range(int(self.y_max / step) + 1):
                y = self.y(i * step)
                parts.append(f'<line class="grid" x1="{_LEFT}" x2="{self.width - _RIGHT}" y1="{y}" y2="{y}"/>')
                parts.append(
                    f'<text class="tick" x="{_LEFT - 8}" y="{y + 3.5}" text-anchor="end">{number(i * step)}</text>'
                )
        step, base = nice_step(self.x_max, self.width // 90), self.height - _BOTTOM
        count = int(self.x_max / step + 1e-6)
        for i in range(count + 1):
            text = number(i * step) + (f" {self._unit}" if i == count else "")
            parts.append(
                f'<text class="tick" x="{self.x(i * step)}" y="{base + 18}" text-anchor="middle">{text}</text>'
            )
        parts.append(f'<line class="axis" x1="{_LEFT}" x2="{self.width - _RIGHT}" y1="{base}" y2="{base}"/>')
        return parts

    def svg(self, label: str, parts: Sequence[str]) -> str:
        head = f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{html.escape(label)}">'
        return head + "".join(parts) + "</svg>"


def histogram(values: Sequence[float], unit: str, label: str, marks: Sequence[Mark] = (), bins: int = 72) -> str:
    """How often which value. Bars start at 0 and end at the largest value."""
    top = max(values, default=1.0)
    step = nice_step(top, bins)
    count = int(top / step) + 1
    heights = [0] * count
    for value in values:
        heights[min(int(value / step), count - 1)] += 1
    frame = _Frame(190, count * step, max(heights) * 1.12, unit, HALF)
    parts = frame.axes()
    for i, height in enumerate(heights):
        if height == 0:
            continue
        left, right, y = frame.x(i * step), frame.x((i + 1) * step), frame.y(height)
        title = f"{number(i * step)}–{number((i + 1) * step)} {unit}: {height}"
        parts.append(
            f'<rect class="bar" x="{left + 0.75:.2f}" y="{y}" width="{max(right - left - 1.5, 0.5):.2f}" '
            f'height="{frame.y(0) - y:.2f}" rx="1.5"><title>{title}</title></rect>'
        )
    for i, mark in enumerate(marks):
        x = frame.x(mark.at)
        parts.append(f'<line class="mark" x1="{x}" x2="{x}" y1="{_TOP - 6}" y2="{frame.y(0)}"/>')
        anchor, shift = ("end", -5) if x > HALF * 0.8 else ("start", 5)
        text = html.escape(mark.label)
        parts.append(
            f'<text class="label" x="{x + shift}" y="{_TOP + 4 + 14 * i}" text-anchor="{anchor}">{text}</text>'
        )
    return frame.svg(label, parts)


def level(steps: Sequence[tuple[float, int]], end: float, unit: str, label: str) -> str:
    """A count over time, each step holding until the next."""
    frame = _Frame(200, end, max((count for _, count in steps), default=0) * 1.12 or 1, unit, WHOLE)
    path = [f"M{frame.x(0)},{frame.y(0)}"]
    for at, count in steps:
        path.append(f"H{frame.x(at)}V{frame.y(count)}")
    line = "".join(path) + f"H{frame.x(end)}"
    area = line + f"V{frame.y(0)}Z"
    return frame.svg(label, [*frame.axes(), f'<path class="area" d="{area}"/>', f'<path class="line" d="{line}"/>'])


def lanes(rows: Sequence[Lane], end: float, unit: str, label: str) -> str:
    """One thin row for each thing that ran, its pieces coloured by kind."""
    thickness = 3 if len(rows) > 60 else 9
    frame = _Frame(_TOP + _BOTTOM + len(rows) * thickness, end, 1, unit, WHOLE)
    parts = frame.axes(vertical=False)
    for i, row in enumerate(rows):
        y = _TOP + i * thickness
        bars = []
        for bar in row.bars:
            left = frame.x(bar.start)
            width = max(frame.x(bar.end) - left, 0.6)
            bars.append(
                f'<rect class="k-{bar.kind}" x="{left}" y="{y}" width="{width:.2f}" height="{thickness * 0.8:.1f}"/>'
            )
        parts.append(f"<g><title>{html.escape(row.title)}</title>{''.join(bars)}</g>")
    return frame.svg(label, parts)
