"""The sections of the report that are tables: topics, retries, consumers, audit."""

from __future__ import annotations

from html import escape

from fasti.pipeline.charts import length, number, sparkline
from fasti.pipeline.figures import TOPICS_MAX, Figures, Topic
from fasti.pipeline.figures_read import Row
from fasti.pipeline.report_markup import badge, bar, empty, many, section, table, time_of

_REASONS_MAX, _CONSUMERS_MAX, _FINDINGS_MAX = 12, 30, 100
_FINDINGS_FIRST = 15
# Names and reasons are users' own, and can be long.
_TEXT_MAX = 200


def topics(found: Figures) -> str:
    """A row of each topic."""
    if not found.topics:
        return section("Topics", "", empty("There are no topics with messages yet."))
    columns = ["topic", "out over time", "in>", "out>", "p50>", "p99>", "max>", "early>"]
    columns += ["failed>", "dead>", "pending>"]
    shown = found.topics[:TOPICS_MAX]
    note = "Counts since the lake began; lateness of the last day with deliveries (UTC)."
    if len(shown) < len(found.topics):
        note += (
            f" {TOPICS_MAX} of {number(len(found.topics))}: those with something to look at, then "
            "those with most deliveries."
        )
    return section("Topics", note, table(columns, [_topic(each) for each in shown]))


def _topic(topic: Topic) -> tuple[str, ...]:
    late = topic.lateness or {}
    over = f" {badge('over capacity', 'warn')}" if topic.over else ""
    return (
        clipped(topic.name) + over,
        sparkline(topic.recent),
        number(topic.counts["messages_in"]),
        number(topic.counts["messages_out"]),
        *(escape(length(late.get(column))) for column in ("p50_us", "p99_us", "max_us")),
        badge(number(topic.early), "bad") if topic.early else "0",
        number(topic.counts["failed"]),
        number(topic.counts["dead"]),
        number(topic.pending),
    )


def clipped(text: str) -> str:
    """Escaped, and no longer than a cell should be."""
    return escape(text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…")


_OPS = {
    "nacked": "failed",
    "expired": "lease expired",
    "released": "given back",
    "rejected": "dead: rejected",
    "exhausted": "dead: out of attempts",
    "lapsed": "dead: too late",
    "redriven": "redriven",
    "purged": "purged",
}


def retries(found: Figures) -> str:
    """What failed and why, and how many attempts it took."""
    note = "What failed and why, and how many attempts it took until done."
    if not found.reasons and not found.attempts:
        return section("Retries", note, empty("No attempt has ended yet."))
    parts = [_reasons(found) if found.reasons else empty("Nothing has failed.")]
    if found.attempts:
        highest = max(count for _, count in found.attempts)
        total = sum(count for _, count in found.attempts)
        rows = [
            (many(attempts, "attempt"), bar(count, highest), number(count), _percent(count, total))
            for attempts, count in found.attempts[:_REASONS_MAX]
        ]
        parts.append(table(("done after", "", "messages>", "share>"), rows))
    return section("Retries", note, *parts)


def _reasons(found: Figures) -> str:
    shown = found.reasons[:_REASONS_MAX]
    highest = max(row["count"] for row in shown)
    rows = [
        (
            escape(str(_OPS.get(row["op"], row["op"]))),
            clipped(row["reason"]) or "–",
            bar(row["count"], highest, "failed" if row["op"] in _OPS else ""),
            number(row["count"]),
        )
        for row in shown
    ]
    told = table(("what", "reason", "", "count>"), rows)
    more = len(found.reasons) - len(shown)
    return told + (f"<p>and {many(more, 'more reason')}.</p>" if more else "")


def _percent(count: int, total: int) -> str:
    """Three digits that count; 100 % only of all."""
    share = 100 * count / max(total, 1)
    if count < total and share > 99.9:
        return "> 99.9 %"
    return f"{share:.3g} %" if share >= 0.01 or not count else "< 0.01 %"


def consumers(found: Figures) -> str:
    """Who did the work."""
    note = "Who did the work. Errors: failed, rejected, or the lease expired."
    if not found.consumers:
        return section("Consumers", note, empty("No consumer has had a message yet."))
    rows = [_consumer(row) for row in found.consumers[:_CONSUMERS_MAX]]
    more = len(found.consumers) - len(rows)
    rest = f"<p>and {number(more)} more.</p>" if more > 0 else ""
    columns = ("consumer", "topic", "done>", "errors>", "share>", "per message>")
    return section("Consumers", note, table(columns, rows), rest)


def _consumer(row: Row) -> tuple[str, ...]:
    ended = row["acked"] + row["errors"]
    share = 100 * row["errors"] / ended if ended else 0.0
    kind = "bad" if share >= 10 else "warn" if share >= 1 else ""
    return (
        clipped(row["consumer"]) or "–",
        clipped(row["topic"]),
        number(row["acked"]),
        number(row["errors"]),
        badge(_percent(row["errors"], ended), kind) if row["errors"] else "0",
        escape(length(row["busy_us"] / ended)) if ended else "–",
    )


def audit(found: Figures) -> str:
    """What the audit found, if anything."""
    note = (
        "Every transition of every message held against its lifecycle, and the broker's own counts "
        "against what its feed adds up to."
    )
    state = found.state
    if not state.audit:
        told = "Not audited yet: `fasti pipeline once` and `fasti pipeline audit` do it."
        return section("Audit", note, empty(told), name="audit")
    agree = ""
    if state.compared:
        agree = f" Compared with the broker's counts of {many(len(state.compared), 'topic')}."
    looked = (
        f"{many(state.transitions, 'transition')} looked at, {time_of(state.audited_us)}.{agree}"
    )
    if not found.found:
        return section("Audit", note, f"<p><b>No findings.</b> {looked}</p>", name="audit")
    told = f"<p><b>{many(found.found, 'finding')}.</b> {looked}</p>"
    rows = [_finding(row) for row in found.findings[:_FINDINGS_MAX]]
    columns = ("kind", "topic", "id>", "what<", "position>")
    told += table(columns, rows[:_FINDINGS_FIRST])
    if len(rows) > _FINDINGS_FIRST:
        told += (
            f"<details><summary>The next {number(len(rows) - _FINDINGS_FIRST)}</summary>"
            f"{table(columns, rows[_FINDINGS_FIRST:])}</details>"
        )
    more = found.found - len(rows)
    rest = (
        f"<p>and {number(more)} more: <code>fasti pipeline tables show audit</code></p>"
        if more > 0
        else ""
    )
    return section("Audit", note, told, rest, name="audit")


def _finding(row: Row) -> tuple[str, ...]:
    return (
        badge(row["kind"], "bad"),
        clipped(row["topic"] or "–"),
        "–" if row["id"] is None else str(row["id"]),
        clipped(row["what"]),
        "–" if row["position"] is None else number(row["position"]),
    )
