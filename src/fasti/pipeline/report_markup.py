"""What the report's sections are made of. Arguments that are HTML already say so; the rest is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from fasti.pipeline.charts import moment

_KINDS = {">": ' class="n"', "<": ' class="t"'}
_BLOCKS = ("due", "over", "overdue", "failed", "ribbon", "bars")


def time_of(at_us: int, kind: str = "full") -> str:
    """A moment that the script writes in the reader's zone."""
    full = moment(at_us)
    return f'<time data-t="{at_us // 1000}" data-f="{kind}" title="{full}">{moment(at_us, kind)}</time>'


def section(title: str, note: str, *content: str, name: str = "") -> str:
    """A card of the page; `note` and `content` are HTML."""
    told = f"<p>{note}</p>" if note else ""
    place = f' id="{name}"' if name else ""
    return f"<section{place}><h2>{escape(title)}</h2>{told}{''.join(content)}</section>"


def legend(*names: tuple[str, str]) -> str:
    """Names and the styles that they stand for; a style in two words is a kind of sign, too."""
    items = []
    for name, style in names:
        kind, *sign = style.split()
        block = " block" if kind in _BLOCKS or sign else ""
        items.append(f'<li><i class="{kind}k{block}"></i>{escape(name)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def empty(text: str) -> str:
    """In the place of what isn't there."""
    return f'<p class="empty">{escape(text)}</p>'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML; columns whose names end with `>` are numbers, those with `<` sentences."""
    kinds = [_KINDS.get(name[-1:], "") for name in columns]
    head = "".join(
        f'<th scope="col"{kind}>{escape(name.rstrip("<>"))}</th>'
        for name, kind in zip(columns, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    return (
        '<div class="scroll" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def behind(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The figures of a chart as a table, for those who want numbers or can't see it."""
    return f"<details><summary>The figures as a table</summary>{table(columns, rows)}</details>"


def bar(value: int, highest: int, style: str = "") -> str:
    """A bar in a table's cell."""
    width = max(2, round(90 * value / max(highest, 1)))
    return f'<span class="bar {style}" style="width:{width}px"></span>'


def badge(text: str, kind: str = "") -> str:
    """A word that stands out."""
    return f'<span class="badge {kind}">{escape(text)}</span>'


def many(count: int, what: str) -> str:
    """1 topic, 2,000 topics."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
