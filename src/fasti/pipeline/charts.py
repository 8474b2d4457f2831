"""Charts as SVG, drawn by hand: text in, text out, nothing fetched.

Every text that comes from somewhere else is escaped. A chart is drawn twice, wide for a wall and narrow
for a phone, so that letters keep their size; the page shows the one that fits. Moments are written in
UTC with `data-t` beside them, from which the page's script writes them in the reader's zone. What can be
pointed at has `data-tip`, a line per figure. Who can't see a chart hears its `label` and `told`.

Axes begin at 0, but for logarithmic ones, which say so by their labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape

from fasti.model import DAY_US

WIDE, NARROW = 1120, 380
# Above the drawing there is a line for what its axis counts.
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 28, 30
_STEPS_S = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200),
    *(86400, 172800, 432000, 864000, 2592000),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart: a value for each period, None where there is none."""

    name: str
    values: Sequence[float | None]
    style: str
    # Bars stand on the ground; lines go from point to point.
    bars: bool = False
    filled: bool = False
    # How much of a period's width its bar takes.
    share: float = 0.72
    # A ribbon: from these values up to the line's.
    above: Sequence[float | None] | None = None


@dataclass(frozen=True)
class Chart:
    """Values over time. `tips` has a text for each period, for those who point at it."""

    label: str
    # The chart in a sentence, and what its axis counts.
    told: str
    unit: str
    starts_us: Sequence[int]
    length_us: int
    lines: Sequence[Line]
    tips: Sequence[str]
    written: Callable[[float], str]
    logarithmic: bool = False
    height: int = 260
    # A level that is drawn across: its name and height.
    level: tuple[str, float] | None = None
    widths: tuple[int, int] = field(default=(WIDE, NARROW))
    # Times that are shaded: when they began and ended, and their name.
    shaded: Sequence[tuple[int, int, str]] = ()

    def svg(self) -> str:
        """Both drawings."""
        wide, narrow = self.widths
        return (
            f'<div class="wide">{self._drawn(wide)}</div>'
            f'<div class="narrow">{self._drawn(narrow)}</div>'
        )

    def _drawn(self, width: int) -> str:
        scale = self._scale()
        left, right = _LEFT, width - _RIGHT
        step = (right - left) / max(1, len(self.starts_us))
        parts = [opened(width, self.height, self.label, self.told), caption(self.unit)]
        parts += [self._shade(*each, left, step) for each in self.shaded]
        parts += [self._ruled(tick, scale, left, right) for tick in scale.ticks]
        parts += self._moments(left, step, width)
        parts += [self._shape(line, scale, left, step) for line in self.lines]
        if self.level is not None:
            parts.append(self._across(scale, left, right))
        parts += self._bands(left, step)
        return "".join([*parts, "</svg>"])

    def _scale(self) -> Scale:
        values = [v for line in self.lines for v in line.values if v is not None]
        if self.level is not None and self._shows_level(max(values, default=0)):
            values.append(self.level[1])
        ground, top = self.height - _BOTTOM, _TOP
        make = logarithmic if self.logarithmic else linear
        return make(values, ground, top)

    def _shows_level(self, highest: float) -> bool:
        """A level far above everything would press the rest flat: then it is only told."""
        assert self.level is not None
        return self.level[1] <= 4 * highest

    def _ruled(self, tick: float, scale: Scale, left: float, right: float) -> str:
        y = scale.place(tick)
        return (
            f'<line class="rule" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">'
            f"{escape(self.written(tick))}</text>"
        )

    def _shade(self, begin_us: int, end_us: int, name: str, left: float, step: float) -> str:
        first = self.starts_us[0]
        x, end = (left + (at - first) / self.length_us * step for at in (begin_us, end_us))
        return (
            f'<rect class="shade" x="{x:.1f}" y="{_TOP}" width="{end - x:.1f}" '
            f'height="{self.height - _TOP - _BOTTOM}"/><text class="tick" x="{(x + end) / 2:.1f}" '
            f'y="{_TOP + 16}" text-anchor="middle">{escape(name)}</text>'
        )

    def _moments(self, left: float, step: float, width: int) -> list[str]:
        """Labels below: whole hours or days of UTC, as many as there is room for."""
        if not self.starts_us:
            return []
        span_s = len(self.starts_us) * self.length_us / 1e6
        room = max(2, width // 110)
        every = next((s for s in _STEPS_S if span_s / s <= room), _STEPS_S[-1])
        every = max(every, self.length_us // 1_000_000)
        kind = "date" if every >= 86400 else "time" if every >= 60 else "second"
        found = []
        for index, start in enumerate(self.starts_us):
            # Every few days are counted from the first one, not from the beginning of time.
            since = self.starts_us[0] if every > 86400 else 0
            if (start - since) // 1_000_000 % every:
                continue
            x = left + index * step
            if x > width - 34:
                continue
            midnight = kind != "date" and start % DAY_US == 0
            told = moment(start, "date" if midnight else kind)
            found.append(
                f'<line class="notch" x1="{x:.1f}" x2="{x:.1f}" y1="{self.height - _BOTTOM}" '
                f'y2="{self.height - _BOTTOM + 5}"/>'
                f'<text class="tick" x="{x:.1f}" y="{self.height - 9}" text-anchor="middle" '
                f'data-t="{start // 1000}" data-f="{kind}">{told}</text>'
            )
        return found

    def _shape(self, line: Line, scale: Scale, left: float, step: float) -> str:
        ground = self.height - _BOTTOM
        if line.bars:
            wide = min(max(1.0, step * line.share), 84 * line.share)
            return "".join(
                f'<rect class="{line.style}" x="{left + (i + 0.5) * step - wide / 2:.1f}" '
                f'y="{scale.place(value):.1f}" width="{wide:.1f}" '
                f'height="{max(1.0, ground - scale.place(value)):.1f}" rx="1"/>'
                for i, value in enumerate(line.values)
                if value
            )
        if line.above is not None:
            return self._ribbon(line, line.above, scale, left, step)
        pieces = []
        for piece in _runs(line.values):
            points = [(left + (i + 0.5) * step, scale.place(value)) for i, value in piece]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            if len(points) == 1:
                x, y = points[0]
                pieces.append(
                    f'<circle class="{line.style} dot" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'
                )
                continue
            if line.filled:
                first, last = points[0][0], points[-1][0]
                area = f"{first:.1f},{ground} {path} {last:.1f},{ground}"
                pieces.append(f'<polygon class="{line.style} area" points="{area}"/>')
            pieces.append(f'<polyline class="{line.style} line" points="{path}"/>')
        return "".join(pieces)

    def _ribbon(
        self,
        line: Line,
        above: Sequence[float | None],
        scale: Scale,
        left: float,
        step: float,
    ) -> str:
        """As wide as its periods, so that one alone can be seen too."""
        pieces = []
        for piece in _runs(line.values):
            upper, lower = [], []
            for i, value in piece:
                edges = (left + (i + 0.1) * step, left + (i + 0.9) * step)
                upper += [f"{x:.1f},{scale.place(value):.1f}" for x in edges]
                lower += [f"{x:.1f},{scale.place(above[i] or value):.1f}" for x in edges]
            points = " ".join([*upper, *reversed(lower)])
            pieces.append(f'<polygon class="{line.style} ribbon" points="{points}"/>')
        return "".join(pieces)

    def _across(self, scale: Scale, left: float, right: float) -> str:
        assert self.level is not None
        name, height = self.level
        values = [v for line in self.lines for v in line.values if v is not None]
        if not self._shows_level(max(values, default=0)):
            return (
                f'<text class="tick" x="{right}" y="12" text-anchor="end">'
                f"{escape(name)}, far above ↑</text>"
            )
        y = scale.place(height)
        # Its name stands above the drawing, where no bar reaches.
        return (
            f'<line class="level" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="levelname" x="{right}" y="12" text-anchor="end">- - {escape(name)}</text>'
        )

    def _bands(self, left: float, step: float) -> list[str]:
        """What can be pointed at: a band as high as the chart for each period."""
        bands = []
        for index, (start, tip) in enumerate(zip(self.starts_us, self.tips, strict=True)):
            bands.append(
                f'<rect class="band" x="{left + index * step:.1f}" y="{_TOP}" '
                f'width="{step:.2f}" height="{self.height - _TOP - _BOTTOM}" '
                f'data-t="{start // 1000}" data-tip="{escape(tip)}"/>'
            )
        return bands


def opened(width: int, height: int, label: str, told: str) -> str:
    """The beginning of a drawing: what it is, and in a sentence what it shows."""
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" tabindex="0" class="chart" '
        f'aria-label="{escape(label)}. {escape(told)}"><desc>{escape(told)}</desc>'
    )


def caption(unit: str) -> str:
    """What the axis counts, above it."""
    return f'<text class="tick" x="0" y="12">{escape(unit)}</text>'


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to places on the drawing, and the values that are written beside it."""

    place: Callable[[float], float]
    ticks: list[float]


def linear(values: Sequence[float], ground: float, top: float) -> Scale:
    """From 0 to a round number."""
    highest = max([*values, 1])
    step = _round_step(highest / 4)
    ceiling = math.ceil(highest / step) * step
    ticks = [step * n for n in range(round(ceiling / step) + 1)]
    return Scale(lambda value: ground - (ground - top) * value / ceiling, ticks)


def logarithmic(values: Sequence[float], ground: float, top: float) -> Scale:
    """Powers of ten around the values; what is not above 0 lies on the ground."""
    known = [value for value in values if value > 0] or [1.0]
    low = math.floor(math.log10(min(known)))
    high = max(math.ceil(math.log10(max(known))), low + 1)

    def place(value: float) -> float:
        height = math.log10(value) if value > 0 else low
        return ground - (ground - top) * (max(height, low) - low) / (high - low)

    return Scale(place, [10.0**n for n in range(low, high + 1)])


def _round_step(wanted: float) -> float:
    """1, 2 or 5 times a power of ten, at least as large; whole."""
    power = 10 ** math.floor(math.log10(max(wanted, 1e-9)))
    for factor in (1, 2, 5, 10):
        if factor * power >= wanted:
            return max(1, factor * power)
    raise AssertionError("ten times the power is above")


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Neighbours that have a value: where there is none, a line ends."""
    runs: list[list[tuple[int, float]]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((index, value))
    return [run for run in runs if run]


def sparkline(values: Sequence[int]) -> str:
    """A tiny line without axes, for a row of a table; on its own scale from 0."""
    if len(values) > 60:
        size = math.ceil(len(values) / 60)
        values = [sum(values[i : i + size]) for i in range(0, len(values), size)]
    highest = max([*values, 1])
    step = 96 / max(1, len(values) - 1)
    points = " ".join(
        f"{2 + i * step:.1f},{22 - 20 * value / highest:.1f}" for i, value in enumerate(values)
    )
    if len(values) < 2:
        return ""
    return (
        '<svg viewBox="0 0 100 24" class="spark" aria-hidden="true">'
        f'<polyline class="out line" points="{points}"/></svg>'
    )


def moment(at_us: int, kind: str = "full") -> str:
    """A moment of UTC as text; the page's script puts the reader's own there."""
    shown = datetime.fromtimestamp(at_us / 1e6, UTC)
    formats = {"time": "%H:%M", "second": "%H:%M:%S", "date": "%-d %b", "hour": "%a %H:%M"}
    return shown.strftime(formats.get(kind, "%-d %b %Y %H:%M:%S UTC"))


def number(value: float) -> str:
    """With thousands apart."""
    return f"{value:,.0f}"


def short(value: float) -> str:
    """For axes: 12k, 3.4M."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{_digits(value / limit)}{letter}"
    return _digits(value)


_UNITS = ((1e3, 1, "µs"), (1e6, 1e3, "ms"), (120e6, 1e6, "s"), (7200e6, 60e6, "min"),
          (172_800e6, 3600e6, "h"))  # fmt: skip


def length(us: float | None) -> str:
    """A length of time for people."""
    if us is None:
        return "–"
    for limit, unit_us, name in _UNITS:
        if abs(us) < limit:
            return f"{_digits(us / unit_us)} {name}"
    return f"{_digits(us / 86_400e6)} d"


def _digits(value: float) -> str:
    """Three digits that count, and no zeros behind the point."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:.0f}"
    places = 1 if abs(value) >= 10 else 2
    return f"{value:.{places}f}".rstrip("0").rstrip(".")
