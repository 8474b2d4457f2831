"""How values are spread, as a chart: bars over a logarithmic scale, with a few values marked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fasti.pipeline.charts import (
    BOTTOM,
    LEFT,
    RIGHT,
    Shape,
    linear,
    number,
    rule_shapes,
    shape,
    short,
    unit_shape,
)
from fasti.pipeline.figures_seconds import Bar

_ROW = 16
_LEAST_PX = 1.5


@dataclass(frozen=True)
class Spread:
    """Bars that are neighbours; `marks` are names and values, each written in a line of its own."""

    label: str
    summary: str
    bars: Sequence[Bar]
    marks: Sequence[tuple[str, float]]
    format: Callable[[float], str]
    height: int = 280
    widths: tuple[int, int] = (380, 380)

    def shapes(self, width: int) -> Iterator[Shape]:
        """The drawing in one width, from the background to the front."""
        ground, top, right = self.height - BOTTOM, 24 + _ROW * len(self.marks), width - RIGHT
        scale = linear([bar.count for bar in self.bars], ground, top)
        across = _Across(self.bars[0].above_us, self.bars[-1].up_to_us, right)
        yield unit_shape("messages")
        for tick in scale.ticks:
            yield from rule_shapes(short(tick), scale.place(tick), right)
        for value in across.ticks():
            x = across.place(value)
            yield shape("line", "notch", x1=x, x2=x, y1=ground, y2=ground + 5)
            label = self.format(value)
            yield shape("text", "tick", label, x=x, y=ground + 21, text_anchor="middle")
        for bar in filter(lambda bar: bar.count, self.bars):
            x, end = across.place(bar.above_us), across.place(bar.up_to_us)
            # However few there are, they can be seen.
            high, wide = max(_LEAST_PX, ground - scale.place(bar.count)), max(1.0, end - x - 1)
            yield shape("rect", "out", x=x + 0.5, y=ground - high, width=wide, height=high)
        for row, (name, value) in enumerate(self.marks):
            x, y = across.place(value), 28 + _ROW * row
            side, shift = ("start", 5) if x < width / 2 else ("end", -5)
            yield shape("line", "mark", x1=x, x2=x, y1=y - 10, y2=ground)
            yield shape(
                "text", "marked", self.format(value), name, x=x + shift, y=y, text_anchor=side
            )
        yield from self._bands(across, ground, top)

    def _bands(self, across: _Across, ground: int, top: int) -> Iterator[Shape]:
        total, so_far = sum(bar.count for bar in self.bars), 0
        for bar in self.bars:
            so_far += bar.count
            x, end = across.place(bar.above_us), across.place(bar.up_to_us)
            box = {"x": x, "y": top, "width": end - x, "height": ground - top}
            head = f"{self.format(bar.above_us)} to {self.format(bar.up_to_us)}"
            tip = (
                f"{number(bar.count)} messages, {100 * bar.count / total:.1f} %\n"
                f"{100 * so_far / total:.1f} % were not later"
            )
            yield shape("rect", "band", **box, data_head=head, data_tip=tip)


@dataclass(frozen=True)
class _Across:
    """The scale that runs from left to right."""

    low: float
    high: float
    right: float

    def place(self, value: float) -> float:
        low, high = math.log10(self.low), math.log10(self.high)
        share = (math.log10(max(value, self.low)) - low) / (high - low)
        return LEFT + (self.right - LEFT) * min(share, 1.0)

    def ticks(self) -> list[float]:
        """Powers of ten, every few of them if there are many; between them 2 and 5 if there are few."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        factors, every = ((1, 2, 5), 1) if last - first <= 2 else ((1,), 1 + (last - first) // 7)
        values = [f * 10.0**n for n in range(first, last + 1, every) for f in factors]
        return [v for v in values if self.low * 0.999 <= v <= self.high * 1.001]
