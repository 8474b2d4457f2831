"""How values are spread, as a drawing: bars over a logarithmic scale, with a few values marked.

Like `charts`: text in, text out, twice, everything escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from fasti.pipeline.charts import Scale, caption, linear, number, opened, short
from fasti.pipeline.figures_seconds import Bar

_LEFT, _RIGHT, _BOTTOM, _ROW = 58, 14, 30, 16
_LEAST_PX = 1.5


@dataclass(frozen=True)
class Spread:
    """Bars that are neighbours; `marks` are names and values, told in lines of their own."""

    label: str
    told: str
    bars: Sequence[Bar]
    marks: Sequence[tuple[str, float]]
    written: Callable[[float], str]
    height: int = 280
    widths: tuple[int, int] = (380, 380)

    def svg(self) -> str:
        """Both drawings."""
        wide, narrow = self.widths
        return (
            f'<div class="wide">{self._drawn(wide)}</div>'
            f'<div class="narrow">{self._drawn(narrow)}</div>'
        )

    def _drawn(self, width: int) -> str:
        ground, top = self.height - _BOTTOM, 24 + _ROW * len(self.marks)
        scale = linear([bar.count for bar in self.bars], ground, top)
        across = _Across(self.bars[0].above_us, self.bars[-1].up_to_us, width - _RIGHT)
        parts = [opened(width, self.height, self.label, self.told), caption("messages")]
        parts += [_ruled(tick, scale, width - _RIGHT) for tick in scale.ticks]
        parts += [_tick(value, across, ground, self.written) for value in across.ticks()]
        parts += [_bar(bar, across, scale, ground) for bar in self.bars if bar.count]
        parts += [
            self._mark(row, name, value, across, ground, width)
            for row, (name, value) in enumerate(self.marks)
        ]
        parts += self._bands(across, ground, top)
        return "".join([*parts, "</svg>"])

    def _mark(
        self, row: int, name: str, value: float, across: _Across, ground: float, width: int
    ) -> str:
        x, y = across.place(value), 28 + _ROW * row
        side, shift = ("start", 5) if x < width / 2 else ("end", -5)
        return (
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 10}" y2="{ground}"/>'
            f'<text class="marked" x="{x + shift:.1f}" y="{y}" text-anchor="{side}">'
            f"<tspan>{escape(name)}</tspan> {escape(self.written(value))}</text>"
        )

    def _bands(self, across: _Across, ground: float, top: float) -> list[str]:
        total, so_far, bands = sum(bar.count for bar in self.bars), 0, []
        for bar in self.bars:
            so_far += bar.count
            x, end = across.place(bar.above_us), across.place(bar.up_to_us)
            tip = (
                f"{number(bar.count)} messages, {100 * bar.count / total:.1f} %\n"
                f"{100 * so_far / total:.1f} % were not later"
            )
            span = f"{self.written(bar.above_us)} to {self.written(bar.up_to_us)}"
            bands.append(
                f'<rect class="band" x="{x:.1f}" y="{top}" width="{end - x:.2f}" '
                f'height="{ground - top}" data-head="{escape(span)}" data-tip="{escape(tip)}"/>'
            )
        return bands


@dataclass(frozen=True)
class _Across:
    """The scale that runs from left to right."""

    low: float
    high: float
    right: float

    def place(self, value: float) -> float:
        low, high = math.log10(self.low), math.log10(self.high)
        share = (math.log10(max(value, self.low)) - low) / (high - low)
        return _LEFT + (self.right - _LEFT) * min(share, 1.0)

    def ticks(self) -> list[float]:
        """Powers of ten, every few of them if there are many; between them 2 and 5 if there are few."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        factors, every = ((1, 2, 5), 1) if last - first <= 2 else ((1,), 1 + (last - first) // 7)
        values = [f * 10.0**n for n in range(first, last + 1, every) for f in factors]
        return [v for v in values if self.low * 0.999 <= v <= self.high * 1.001]


def _ruled(tick: float, scale: Scale, right: float) -> str:
    y = scale.place(tick)
    return (
        f'<line class="rule" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">'
        f"{escape(short(tick))}</text>"
    )


def _tick(value: float, across: _Across, ground: float, written: Callable[[float], str]) -> str:
    x = across.place(value)
    return (
        f'<line class="notch" x1="{x:.1f}" x2="{x:.1f}" y1="{ground}" y2="{ground + 5}"/>'
        f'<text class="tick" x="{x:.1f}" y="{ground + 21}" text-anchor="middle">'
        f"{escape(written(value))}</text>"
    )


def _bar(bar: Bar, across: _Across, scale: Scale, ground: float) -> str:
    """What is there can be seen, however few there are of it."""
    x, end = across.place(bar.above_us), across.place(bar.up_to_us)
    high = max(_LEAST_PX, ground - scale.place(bar.count))
    return (
        f'<rect class="out" x="{x + 0.5:.1f}" y="{ground - high:.1f}" '
        f'width="{max(1.0, end - x - 1):.1f}" height="{high:.1f}"/>'
    )
