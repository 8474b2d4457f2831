"""Which actions may be asked twice without harm: they are asked again while no broker answers."""

from __future__ import annotations

REPEATABLE = frozenset(
    (
        *("hello", "clock", "create_topic", "topic", "topics", "get", "count", "forecast"),
        *("log", "offsets", "groups", "dead", "feed", "kv_get", "kv_describe", "bind"),
        *("bindings", "sinks", "drop_stages", "health", "metrics", "drop_snapshot"),
        *("checkpoint", "scrub", "scrub_status"),
    )
)
