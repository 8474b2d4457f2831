"""Charts as shapes of an SVG drawing: numbers in, positions out. The report's templates write them.

A chart is drawn twice, wide for a wall and narrow for a phone, so that letters keep their size; the
page shows the one that fits. Moments are written in UTC with `data-t` beside them, from which the
page's script writes them in the reader's zone. Where a reader can point, `data-tip` has a line per
figure. Screen readers read `label` and `summary`.

Axes begin at 0, except logarithmic ones, whose labels show it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from fasti.model import DAY_US

WIDE, NARROW = 1120, 380
# Above the drawing there is a line for what its axis counts.
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 28, 30
_STEPS_S = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200),
    *(86400, 172800, 432000, 864000, 2592000),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """An element of a drawing; templates escape its text and attributes."""

    tag: str
    attributes: Mapping[str, object]
    text: str = ""
    # Stands before the text, paler.
    lead: str = ""


def shape(tag: str, style: str, text: str = "", lead: str = "", /, **attributes: object) -> Shape:
    """An element of a class; numbers get one decimal, and `_` in names is written as `-`."""
    written = {
        name.replace("_", "-"): f"{value:.1f}" if isinstance(value, float) else value
        for name, value in attributes.items()
    }
    return Shape(tag, {"class": style, **written}, text, lead)


def unit_shape(unit: str) -> Shape:
    """What the axis counts, above it."""
    return shape("text", "tick", unit, x=0, y=12)


def rule_shapes(label: str, y: float, right: float) -> Iterator[Shape]:
    """A line across the drawing with its value on the left."""
    yield shape("line", "rule", x1=LEFT, x2=right, y1=y, y2=y)
    yield shape("text", "tick", label, x=LEFT - 8, y=y + 4, text_anchor="end")


@dataclass(frozen=True, slots=True)
class ChartLine:
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
    """Values over time. `tips` has a text for each period, for readers who point at it."""

    label: str
    # The chart in a sentence, and what its axis counts.
    summary: str
    unit: str
    starts_us: Sequence[int]
    length_us: int
    lines: Sequence[ChartLine]
    tips: Sequence[str]
    format: Callable[[float], str]
    logarithmic: bool = False
    height: int = 260
    # A level that is drawn across: its name and height.
    level: tuple[str, float] | None = None
    widths: tuple[int, int] = (WIDE, NARROW)
    # Times that are shaded: when they began and ended, and their name.
    shaded: Sequence[tuple[int, int, str]] = ()

    def shapes(self, width: int) -> Iterator[Shape]:
        """The drawing in one width, from the background to the front."""
        scale, right = self._scale(), width - RIGHT
        step = (right - LEFT) / max(1, len(self.starts_us))
        yield unit_shape(self.unit)
        for begin_us, end_us, name in self.shaded:
            yield from self._shade(begin_us, end_us, name, step)
        for tick in scale.ticks:
            yield from rule_shapes(self.format(tick), scale.place(tick), right)
        yield from self._moments(step, width)
        for line in self.lines:
            yield from self._line(line, scale, step)
        if self.level is not None:
            yield from self._level(*self.level, scale, right)
        yield from self._bands(step)

    def _values(self) -> list[float]:
        return [value for line in self.lines for value in line.values if value is not None]

    def _scale(self) -> Scale:
        values = self._values()
        if self.level is not None and self._shows(self.level[1]):
            values.append(self.level[1])
        make = logarithmic if self.logarithmic else linear
        return make(values, self.height - BOTTOM, TOP)

    def _shows(self, level: float) -> bool:
        """A level far above everything would press the rest flat: then only its name is shown."""
        return level <= 4 * max(self._values(), default=0)

    def _shade(self, begin_us: int, end_us: int, name: str, step: float) -> Iterator[Shape]:
        first = self.starts_us[0]
        x, end = (LEFT + (at - first) / self.length_us * step for at in (begin_us, end_us))
        height = self.height - TOP - BOTTOM
        yield shape("rect", "shade", x=x, y=TOP, width=end - x, height=height)
        yield shape("text", "tick", name, x=(x + end) / 2, y=TOP + 16, text_anchor="middle")

    def _moments(self, step: float, width: int) -> Iterator[Shape]:
        """Labels below: whole hours or days of UTC, as many as there is room for."""
        if not self.starts_us:
            return
        span_s = len(self.starts_us) * self.length_us / 1e6
        room = max(2, width // 110)
        every = next((s for s in _STEPS_S if span_s / s <= room), _STEPS_S[-1])
        every = max(every, self.length_us // 1_000_000)
        kind = "date" if every >= 86400 else "time" if every >= 60 else "second"
        # Every few days are counted from the first one, not from the beginning of time.
        since = self.starts_us[0] if every > 86400 else 0
        ground = self.height - BOTTOM
        for index, start in enumerate(self.starts_us):
            x = LEFT + index * step
            if (start - since) // 1_000_000 % every or x > width - 34:
                continue
            yield shape("line", "notch", x1=x, x2=x, y1=ground, y2=ground + 5)
            midnight = kind != "date" and start % DAY_US == 0
            label = moment(start, "date" if midnight else kind)
            place = {"x": x, "y": self.height - 9, "text_anchor": "middle"}
            yield shape("text", "tick", label, **place, data_t=start // 1000, data_f=kind)

    def _line(self, line: ChartLine, scale: Scale, step: float) -> Iterator[Shape]:
        if line.bars:
            yield from self._bars(line, scale, step)
            return
        for run in _runs(line.values):
            if line.above is not None:
                yield _ribbon(line.style, run, line.above, scale, step)
                continue
            points = [(LEFT + (i + 0.5) * step, scale.place(value)) for i, value in run]
            if len(points) == 1:
                ((x, y),) = points
                yield shape("circle", f"{line.style} dot", cx=x, cy=y, r="4.5")
                continue
            if line.filled:
                ground = self.height - BOTTOM
                area = [(points[0][0], ground), *points, (points[-1][0], ground)]
                yield shape("polygon", f"{line.style} area", points=_path(area))
            yield shape("polyline", f"{line.style} line", points=_path(points))

    def _bars(self, line: ChartLine, scale: Scale, step: float) -> Iterator[Shape]:
        ground = self.height - BOTTOM
        width = min(max(1.0, step * line.share), 84 * line.share)
        for i, value in enumerate(line.values):
            if value:
                x, y = LEFT + (i + 0.5) * step - width / 2, scale.place(value)
                high = max(1.0, ground - y)
                yield shape("rect", line.style, x=x, y=y, width=width, height=high, rx=1)

    def _level(self, name: str, level: float, scale: Scale, right: float) -> Iterator[Shape]:
        # Its name stands above the drawing, where no bar reaches.
        place = {"x": right, "y": 12, "text_anchor": "end"}
        if not self._shows(level):
            yield shape("text", "tick", f"{name}, far above ↑", **place)
            return
        y = scale.place(level)
        yield shape("line", "level", x1=LEFT, x2=right, y1=y, y2=y)
        yield shape("text", "levelname", f"- - {name}", **place)

    def _bands(self, step: float) -> Iterator[Shape]:
        """Where a reader can point: a band as high as the chart for each period."""
        height = self.height - TOP - BOTTOM
        for index, (start, tip) in enumerate(zip(self.starts_us, self.tips, strict=True)):
            box = {"x": LEFT + index * step, "y": TOP, "width": step, "height": height}
            yield shape("rect", "band", **box, data_t=start // 1000, data_tip=tip)


def _ribbon(
    style: str,
    run: Sequence[tuple[int, float]],
    above: Sequence[float | None],
    scale: Scale,
    step: float,
) -> Shape:
    """As wide as its periods, so that one alone can be seen too."""
    upper, lower = [], []
    for i, value in run:
        for x in (LEFT + (i + 0.1) * step, LEFT + (i + 0.9) * step):
            upper.append((x, scale.place(value)))
            lower.append((x, scale.place(above[i] or value)))
    return shape("polygon", f"{style} ribbon", points=_path([*upper, *reversed(lower)]))


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


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
    """The points of a tiny line without axes, on its own scale from 0; empty for a single value."""
    if len(values) < 2:
        return ""
    size = math.ceil(len(values) / 60)
    sums = [sum(values[i : i + size]) for i in range(0, len(values), size)]
    step, highest = 96 / max(1, len(sums) - 1), max([*sums, 1])
    return _path([(2 + i * step, 22 - 20 * value / highest) for i, value in enumerate(sums)])


# Scales


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to positions in the drawing, and the values that are written beside it."""

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


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten, at least as large; whole."""
    power = 10 ** math.floor(math.log10(max(least, 1e-9)))
    return max(1, next(f * power for f in (1, 2, 5, 10) if f * power >= least))


# Values as text


def moment(at_us: int, kind: str = "full") -> str:
    """A moment of UTC as text; the page's script puts the reader's own there."""
    formats = {"time": "%H:%M", "second": "%H:%M:%S", "date": "%-d %b", "hour": "%a %H:%M"}
    at = datetime.fromtimestamp(at_us / 1e6, UTC)
    return at.strftime(formats.get(kind, "%-d %b %Y %H:%M:%S UTC"))


def number(value: float) -> str:
    """With commas between thousands."""
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
    """Three significant digits, without trailing zeros behind the point."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:.0f}"
    places = 1 if abs(value) >= 10 else 2
    return f"{value:.{places}f}".rstrip("0").rstrip(".")
