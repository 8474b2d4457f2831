"""How far a stream is behind what the broker has, from the progress that Spark reports.

Spark lets a Python source report offsets, not metrics of its own, so the difference is taken here.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from fasti.protocol.feed_name import is_feed_name
from fasti.spark.places import LOG


def behind(query: StreamingQuery) -> int | None:
    """Rows of logs and positions of change feeds that the query's last micro-batch left unread.

    As of that micro-batch: 0 when it read all there was then. None before the first one.
    """
    progress = query.lastProgress
    if progress is None:
        return None
    return sum(_behind(source) for source in progress["sources"])


def _behind(source: dict[str, Any]) -> int:
    """Of one source; 0 if it is none of ours."""
    end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    if not end or not latest or end.get(LOG) != latest.get(LOG):
        return 0
    return sum(
        max(0, int(latest[part]) - int(end[part])) for part in latest if part in end and part != LOG
    )


def _offsets(value: Any) -> dict[str, Any]:
    offsets = json.loads(value) if isinstance(value, str) else value
    if not isinstance(offsets, dict):
        return {}
    ours = LOG in offsets or any(is_feed_name(name) for name in offsets)
    return offsets if ours else {}
