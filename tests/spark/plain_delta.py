"""The lake's tables as other programs read them: by `deltalake` into pandas, and by hand from Delta's log."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

from fasti.client.client import Client
from fasti.pipeline.inventory import inventory, tables
from fasti.pipeline.lake import Lake

# What a row of each table is: no two have the same.
KEYS = {
    "transitions": ["shard", "position", "row"],
    "messages": ["topic", "topic_since", "id"],
    "topics": ["topic_no"],
    "lateness": ["topic", "grain", "start"],
    "throughput": ["topic", "grain", "start"],
    "backlog": ["topic", "grain", "start"],
    "consumers": ["topic", "consumer", "grain", "start"],
    "retries": ["topic", "grain", "start", "op", "reason"],
    "attempts": ["topic", "grain", "start", "attempts"],
    "audit": ["topic", "partition", "id", "kind", "what", "shard", "position"],
}


def versions(path: Path) -> dict[int, list[str]]:
    """The files of every version, as the log's JSON tells them."""
    files: dict[str, None] = {}
    found = {}
    for log in sorted((path / "_delta_log").glob("[0-9]*.json")):
        for line in log.read_text().splitlines():
            action = json.loads(line)
            if "remove" in action:
                del files[unquote(action["remove"]["path"])]
            if "add" in action:
                files[unquote(action["add"]["path"])] = None
        found[int(log.stem)] = list(files)
    return found


def rows_of(path: Path, files: list[str], columns: list[str]) -> list[tuple[Any, ...]]:
    """Columns that are in the files themselves."""
    pieces = [
        pq.read_table(path / each, columns=columns, partitioning=None).select(columns)
        for each in files
    ]
    rows = pa.concat_tables(pieces).to_pylist() if pieces else []
    return [tuple(row.values()) for row in rows]


def assert_unique(names: list[Any], what: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    assert not twice, f"{what} has {len(twice)} names in several rows, such as {twice[0]}"


def assert_tables_are_true(lake: Lake) -> None:
    """Every table has each row once, for any reader, and as many as `fasti pipeline tables` says."""
    counted = {each.name: each.rows for each in inventory(lake)}
    for name, table in tables(lake).items():
        frame = deltalake.DeltaTable(str(table.path)).to_pandas()
        assert len(frame) == counted[name], name
        twice = frame[frame.duplicated(KEYS[name], keep=False)]
        assert twice.empty, f"{name}: {twice[KEYS[name]].to_dict('records')[:3]}"
        *_, last = versions(table.path).values()
        assert len(rows_of(table.path, last, KEYS[name])) == len(frame), name


def assert_every_version_is_true(lake: Lake) -> int:
    """One row per message, at each version of `messages` that there ever was. Returns how many."""
    path = lake.messages.path
    for version, files in (found := versions(path)).items():
        assert_unique(rows_of(path, files, KEYS["messages"]), f"version {version}")
    return len(found)


def states(lake: Lake) -> dict[tuple[str, str], int]:
    """How many messages of a topic are in a state, by `deltalake` and pandas."""
    frame = deltalake.DeltaTable(str(lake.messages.path)).to_pandas()
    return {(t, s): int(n) for (t, s), n in frame.groupby(["topic", "state"]).size().items()}


def as_the_broker_says(client: Client) -> dict[tuple[str, str], int]:
    """The same by the broker's own counts."""
    told = {}
    for topic in client.topics():
        counts = topic.counts
        pending = counts["scheduled"] + counts["ready"]
        words = {"pending": pending} | {s: counts[s] for s in ("leased", "dead", "done")}
        for state, number in {**words, "cancelled": counts["cancelled"]}.items():
            if number:
                told[topic.name, state] = number
    return told
