"""Bar charts as SVG, written by hand: they read well on light and dark pages and need no library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _LEFT, _RIGHT = 760, 210, 110
_TOP, _ROW, _BAR, _BOTTOM = 46, 26, 16, 30
_STYLE = """
  .back { fill: #ffffff; } .text { fill: #1f2328; } .faint { fill: #59636e; }
  .grid { stroke: #d1d9e0; } .bar { fill: #8c959f; } .ours { fill: #0969da; }
  .spread { stroke: #1f2328; }
  text { font: 12px system-ui, sans-serif; } .title { font-size: 14px; font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    .back { fill: #0d1117; } .text { fill: #f0f6fc; } .faint { fill: #9198a1; }
    .grid { stroke: #3d444d; } .bar { fill: #656c76; } .ours { fill: #4493f8; }
    .spread { stroke: #f0f6fc; }
  }
"""


@dataclass(frozen=True)
class Bar:
    """One bar, with the least and the greatest of its rounds."""

    label: str
    value: float
    least: float
    greatest: float
    ours: bool = False


def bar_chart(title: str, unit: str, bars: Sequence[Bar]) -> str:
    """Horizontal bars on a logarithmic scale, best first as they are given."""
    height = _TOP + _ROW * len(bars) + _BOTTOM
    scale = _Scale([value for bar in bars for value in (bar.value, bar.least, bar.greatest)])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"'
        f' width="{_WIDTH}" height="{height}">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect class="back" width="{_WIDTH}" height="{height}" rx="6"/>',
        f'<text class="text title" x="16" y="24">{escape(title)}</text>',
        f'<text class="faint" x="{_WIDTH - 16}" y="24" text-anchor="end">{escape(unit)},'
        " logarithmic</text>",
        *_grid(scale, height),
        *(line for number, bar in enumerate(bars) for line in _bar(bar, number, scale)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class _Scale:
    """From values to places on a logarithmic axis of whole powers of ten."""

    def __init__(self, values: Sequence[float]) -> None:
        usable = [value for value in values if value > 0] or [1.0]
        self.low = math.floor(math.log10(min(usable)))
        self.high = max(math.ceil(math.log10(max(usable))), self.low + 1)

    def x(self, value: float) -> float:
        share = 0.0
        if value > 0:
            share = (math.log10(value) - self.low) / (self.high - self.low)
        return round(_LEFT + min(1.0, max(0.0, share)) * (_WIDTH - _LEFT - _RIGHT), 1)


def _grid(scale: _Scale, height: int) -> list[str]:
    parts = []
    for power in range(scale.low, scale.high + 1):
        x = scale.x(10.0**power)
        parts.append(
            f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP - 6}" y2="{height - _BOTTOM}"/>'
            f'<text class="faint" x="{x}" y="{height - 10}" text-anchor="middle">'
            f"{readable(10.0**power)}</text>"
        )
    return parts


def _bar(bar: Bar, number: int, scale: _Scale) -> list[str]:
    top = _TOP + _ROW * number
    middle = top + _BAR / 2
    end = scale.x(bar.value)
    kind = "ours" if bar.ours else "bar"
    label = f'<text class="text" x="{_LEFT - 8}" y="{top + 12}" text-anchor="end">'
    after = max(end, scale.x(bar.greatest)) + 6
    return [
        f"{label}{escape(bar.label)}</text>",
        f'<rect class="{kind}" x="{_LEFT}" y="{top}" width="{round(end - _LEFT, 1)}"'
        f' height="{_BAR}" rx="2"/>',
        f'<line class="spread" x1="{scale.x(bar.least)}" x2="{scale.x(bar.greatest)}"'
        f' y1="{middle}" y2="{middle}"/>',
        f'<text class="text" x="{after}" y="{top + 12}">{readable(bar.value)}</text>',
    ]


def readable(value: float) -> str:
    """Three digits that count: 0.25, 12.3, 4,560, 1.44 M."""
    if value == 0:
        return "0"
    if abs(value) >= 999_500:
        return f"{value / 1e6:.3g} M" if abs(value) < 999.5e6 else f"{value / 1e9:.3g} G"
    if abs(value) >= 99_950:
        return f"{value / 1e3:.0f} k"
    if abs(value) >= 9_995:
        return f"{value / 1e3:.3g} k"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"
