"""How the answers of several shards become one, for calls about rows, topics and pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fasti.client.shards.routing import (
    Answer,
    Answers,
    Merge,
    Piece,
    Request,
    all_answers,
    rows_left,
    run,
)
from fasti.client.transport import Header
from fasti.core.replies import Reply
from fasti.errors import FastiError, NotFound
from fasti.protocol import outcomes as wire

Int64s = NDArray[np.int64]

_FAILED_MAX = 100
_REASONS_MAX = 1000
_REFERENCES_MAX = 100


def only(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """Of a call that went to one shard, as it is."""
    return all_answers(request, pieces, answers)[0]


def where_it_is(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """Of the first shard that has the topic. Raises `not_found` if none has."""
    both = list(zip(pieces, answers, strict=True))
    there = [each for each in both if not isinstance(each[1], NotFound)] or both
    return all_answers(request, [piece for piece, _ in there], [answer for _, answer in there])[0]


def nothing(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """Of calls that answer nothing: it is done everywhere."""
    all_answers(request, pieces, answers)
    return {}, []


# Rows


def outcomes(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """What became of each row, in the order of the request.

    Raises what a shard refused or didn't answer; `rows_left` says of which rows.
    """
    if len(pieces) == 1:
        return only(request, pieces, answers)
    total = sum(len(_rows(piece)) for piece in pieces)
    if any(isinstance(answer, FastiError) for answer in answers):
        raise rows_left(request, pieces, answers, total)
    headers = [header for header, _ in all_answers(request, pieces, answers)]
    return _merged_outcomes([_rows(piece) for piece in pieces], headers, total), []


def appended_outcomes(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """The same by rows; of rows that the shards have chosen themselves, those of each behind another."""
    if all(piece.rows is not None for piece in pieces) or len(pieces) == 1:
        return outcomes(request, pieces, answers)
    headers = [header for header, _ in all_answers(request, pieces, answers)]
    counts = [sum(count for _, count in header["status"]) for header in headers]
    begins = np.cumsum([0, *counts]).tolist()
    places = [np.arange(begin, begin + n) for begin, n in zip(begins, counts, strict=False)]
    return _merged_outcomes(places, headers, begins[-1]), []


def _merged_outcomes(places: Sequence[Int64s], headers: Sequence[Header], total: int) -> Header:
    status = np.zeros(total, dtype=np.uint8)
    ids, versions, at_us = (np.zeros(total, dtype=np.int64) for _ in range(3))
    by: dict[int, str] = {}
    reasons: dict[str, str] = {}
    for rows, header in zip(places, headers, strict=True):
        found = wire.decode(header)
        status[rows], versions[rows] = found.status, found.versions
        if "ids" in header:
            ids[rows] = found.ids
        for row, moment in found.at_us.items():
            at_us[rows[row]] = moment
        by |= {int(rows[row]): name for row, name in found.by.items()}
        reasons |= {str(rows[row]): why for row, why in found.reasons.items()}
    has_moments = any("at_us" in header for header in headers)
    reply = Reply(status, ids, versions, at_us if has_moments else None, by or None)
    told = wire.encode(reply, with_ids=all("ids" in header for header in headers))
    return told | {"reasons": reasons} if reasons else told


def tables_by_rows(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """A table with a row for each of the request, in its order."""
    found = all_answers(request, pieces, answers)
    header = dict(found[0][0])
    if "position" in header:
        header["position"] = _by_number(pieces, found, "position")
    if len(found) == 1:
        return header, found[0][1]
    order = np.concatenate([_rows(piece) for piece in pieces])
    table = pa.concat_tables([parts[0] for _, parts in found])
    return header, [table.take(pa.array(np.argsort(order, kind="stable")))]


def _rows(piece: Piece) -> Int64s:
    assert piece.rows is not None
    return piece.rows


# Counts


def counted(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """Counts by state, summed; the position is a place in the feed of each shard that was asked."""
    found = [header for header, _ in all_answers(request, pieces, answers)]
    return _counts(found), []


def _counts(found: Sequence[Header]) -> Header:
    counts = summed(header["counts"] for header in found)
    return {"counts": counts, "position": {h["shard"]: int(h["position"]) for h in found}}


def topic(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """A topic's settings as the catalogue has them, its counts over all shards."""
    found = [header for header, _ in all_answers(request, pieces, answers)]
    return {**found[0], **_counts(found), "shards": [piece.shard for piece in pieces]}, []


def topics(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """All topics by name: settings of the first shard that has one, which is the catalogue."""
    described: dict[str, list[Header]] = {}
    for header, _ in all_answers(request, pieces, answers):
        for one in header["topics"]:
            described.setdefault(one["topic"], []).append({**one, "shard": header["shard"]})
    merged = [{**found[0], **_counts(found)} for _, found in sorted(described.items())]
    for one in merged:
        del one["shard"]
    return {"topics": merged}, []


def summed(counts: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Sums by name, in the order of the first."""
    total: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            total[name] = total.get(name, 0) + int(count)
    return total


def sums_with_positions(*names: str) -> Merge:
    """Those fields summed, and the position of each shard by its number."""

    def merge(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
        found = all_answers(request, pieces, answers)
        total = {name: sum(int(header[name]) for header, _ in found) for name in names}
        return {**found[0][0], **total, "position": _by_number(pieces, found, "position")}, []

    return merge


def _by_number(pieces: Sequence[Piece], found: Sequence[Answer], name: str) -> dict[int, Any]:
    return {piece.shard: header[name] for piece, (header, _) in zip(pieces, found, strict=True)}


def forecast(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """Buckets of the same start are summed."""
    found = all_answers(request, pieces, answers)
    schema = found[0][1][0].schema
    buckets = pa.concat_tables([parts[0] for _, parts in found])
    # Not by Arrow's `group_by`, which complains on stderr about how Flight's buffers lie in memory.
    starts, places = np.unique(buckets.column("start_us").to_numpy(), return_inverse=True)
    counts = np.zeros(len(starts), dtype=np.int64)
    np.add.at(counts, places, buckets.column("count").to_numpy())
    columns = [pa.array(starts), pa.array(counts)]
    return {}, [pa.table(columns, names=["start_us", "count"]).cast(schema)]


# Stages


def published(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """A stage is made live on each shard by itself; those that have none of it don't count."""
    _, found = _found(request, pieces, answers, "not_found")
    merged = {"rows": sum(int(header["rows"]) for header, _ in found)}
    skipped = [parts[0] for _, parts in found if parts]
    return merged, [pa.concat_tables(skipped)] if skipped else []


# Pages


def walked(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """What became of messages that were chosen by a filter; the cursor says where each shard goes on."""
    found = [header for header, _ in all_answers(request, pieces, answers)]
    if request.parts:
        found += _finish_named(request, pieces, found)
    failed = [row for header in found for row in header["failed"]]
    merged: Header = {
        "looked": sum(header["looked"] for header in found),
        "outcomes": summed(header["outcomes"] for header in found),
        "failed": sorted(failed, key=lambda row: int(row["id"]))[:_FAILED_MAX],
        "next_after_id": 0,
    }
    if not request.parts:
        after = zip(pieces, (header["next_after_id"] for header in found), strict=True)
        merged["next_after_id"] = {p.shard: after_id for p, after_id in after if after_id} or 0
    if all("left" in header for header in found):
        merged["left"] = sum(header["left"] for header in found[: len(pieces)])
    return merged, []


def _finish_named(request: Request, pieces: list[Piece], found: list[Header]) -> list[Header]:
    """A shard looks at as many of the ids named as it may gather at once: the rest follows here."""
    more: list[Header] = []
    for piece, first in zip(pieces, found, strict=True):
        header, part = first, piece.parts[0]
        while last := header["next_after_id"]:
            ids = part.column("id").to_numpy()
            part = part.slice(int(np.flatnonzero(ids == last)[0]) + 1)
            if not part.num_rows:
                break
            rest = [Piece(piece.shard, piece.header, [part])]
            header = all_answers(request, rest, run(request, rest))[0][0]
            more.append(header)
    return more


def dead_page(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """A page of dead rows by id: as far as every shard has looked."""
    found = all_answers(request, pieces, answers)
    ends = [int(header["next_after_id"]) for header, _ in found if header["next_after_id"]]
    table = pa.concat_tables([parts[0] for _, parts in found])
    table = table.take(pc.sort_indices(table.column("id")))
    if ends:
        table = table.filter(pc.less_equal(table.column("id"), min(ends)))
    after_id = min(ends, default=0)
    limit = max(0, int(request.header.get("limit", 1000)))
    if table.num_rows > limit:
        table = table.slice(0, limit)
        after_id = table.column("id")[-1].as_py() if limit else 0
    return {"next_after_id": after_id}, [table]


def dead_counts(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """By reason, the most frequent first."""
    found = [header for header, _ in all_answers(request, pieces, answers)]
    reasons: Counter[str] = Counter()
    for header in found:
        reasons.update(dict(header["reasons"]))
    common = reasons.most_common(_REASONS_MAX)
    left = sum(header["reasons_left"] for header in found) + len(reasons) - len(common)
    return {
        "dead": sum(header["dead"] for header in found),
        "reasons": [list(each) for each in common],
        "reasons_left": left,
    }, []


# Logs and groups


def _partitions(
    request: Request, pieces: Sequence[Piece], lists: Sequence[Sequence[Header]]
) -> list[Header]:
    """Each partition as its own shard tells it, in order."""
    layout = request.layout()
    own = [
        row
        for piece, rows in zip(pieces, lists, strict=True)
        for row in rows
        if layout.shard_of(row["partition"]) == piece.shard
    ]
    return sorted(own, key=lambda row: int(row["partition"]))


def log(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """A log's partitions in order; its identity is that on every shard."""
    found = [header for header, _ in all_answers(request, pieces, answers)]
    lists = [header["partitions"] for header in found]
    merged: Header = {"partitions": _partitions(request, pieces, lists)}
    if "identity" in found[0]:
        merged["identity"] = ",".join(header["identity"] for header in found)
    return merged, []


def truncated(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """The partitions of a log as they are then, also those that were left alone."""
    if len(pieces) < len(request.layout().all_shards):
        all_answers(request, pieces, answers)
        whole, _ = request.transport.call("log", {"topic": request.topic}, (), request.left_s())
        return {"partitions": whole["partitions"]}, []
    return log(request, pieces, answers)


def offsets(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """Offsets by partition, in order."""
    layout = request.layout()
    own = {
        number: offset
        for piece, (header, _) in zip(pieces, all_answers(request, pieces, answers), strict=True)
        for number, offset in header["offsets"].items()
        if layout.shard_of(int(number)) == piece.shard
    }
    return {"offsets": dict(sorted(own.items(), key=lambda place: int(place[0])))}, []


def groups(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """Groups by name, each with the partitions of all shards that know it."""
    pieces, found = _found(request, pieces, answers, "not_found")
    by_name: dict[str, list[tuple[Piece, Header]]] = {}
    for piece, (header, _) in zip(pieces, found, strict=True):
        for group in header["groups"]:
            by_name.setdefault(group["group"], []).append((piece, group))
    return {"groups": [_group(request, known) for _, known in sorted(by_name.items())]}, []


def group(harmless: str) -> Merge:
    """One group, which was made or changed; `harmless` is what a shard may say that was asked before."""

    def merge(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
        kept, found = _found(request, pieces, answers, harmless)
        if len(kept) < len(request.layout().all_shards):
            # Of the shards that had nothing to do it is told too.
            asked = {"topic": request.topic, "group": request.header["group"]}
            whole, _ = request.transport.call("groups", asked, (), request.left_s())
            return {"group": whole["groups"][0]}, []
        described = [header["group"] for header, _ in found]
        return {"group": _group(request, list(zip(kept, described, strict=True)))}, []

    return merge


def _group(request: Request, known: list[tuple[Piece, Header]]) -> Header:
    pieces, described = zip(*known, strict=True)
    lists = [group["partitions"] for group in described]
    return {**described[0], "partitions": _partitions(request, pieces, lists)}


def done_somewhere(harmless: str) -> Merge:
    """Of what answers nothing: fine if one shard has done it and the others say that it was done."""

    def merge(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
        _found(request, pieces, answers, harmless)
        return {}, []

    return merge


def _found(
    request: Request, pieces: list[Piece], answers: Answers, harmless: str
) -> tuple[list[Piece], list[Answer]]:
    """Without the shards that answered an error of this code, if not all did: a call that was broken
    off on the way is made again and finds some of it done.
    """
    kept = [
        (piece, answer)
        for piece, answer in zip(pieces, answers, strict=True)
        if not (isinstance(answer, FastiError) and answer.code == harmless)
    ]
    if kept:
        pieces, answers = [piece for piece, _ in kept], [answer for _, answer in kept]
    return pieces, all_answers(request, pieces, answers)


# Consumers, references


def consumers(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """A row for each consumer, whose sessions on all shards are one, by topic, group and name."""
    found = [header for header, _ in all_answers(request, pieces, answers)]
    by_name: dict[tuple[str, str, str], list[Header]] = {}
    for header in found:
        for row in header["consumers"]:
            name = (row["topic"], row["group"], row["consumer"])
            by_name.setdefault(name, []).append(row)
    merged = [_consumer(rows) for _, rows in sorted(by_name.items())]
    left_out = sum(header["count"] - len(header["consumers"]) for header in found)
    now_us = min(int(header["now_us"]) for header in found)
    return {"consumers": merged, "count": len(merged) + left_out, "now_us": now_us}, []


_EARLIEST = ("oldest_lease_us", "lease_until_us", "connected_us")
_LATEST = ("active_us", "heard_us")


def _consumer(rows: list[Header]) -> Header:
    if len(rows) == 1:
        return rows[0]
    merged = {**rows[0]}
    for name in ("credit", "leases"):
        merged[name] = sum(row[name] for row in rows)
    merged["connected"] = any(row["connected"] for row in rows)
    merged["peer"] = next((row["peer"] for row in rows if row["peer"] is not None), None)
    for names, choose in ((_EARLIEST, _least), (_LATEST, _most)):
        for name in names:
            merged[name] = choose([row[name] for row in rows if row[name] is not None])
    return merged


def _least(values: list[int]) -> int | None:
    return min(values, default=None)


def _most(values: list[int]) -> int | None:
    return max(values, default=None)


def references(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """Schedules of all shards; bindings are the same on each."""
    found = [header for header, _ in all_answers(request, pieces, answers)]
    schedules = [row for header in found for row in header["schedules"]]
    schedules.sort(key=lambda row: (row["topic"], row["name"]))
    return {
        **found[0],
        "schedules": schedules[:_REFERENCES_MAX],
        "schedules_count": sum(header["schedules_count"] for header in found),
    }, []


# Processes and shards as a whole


def snapshot(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """One handle over all shards: each field is a map of what the shards told, by their numbers.

    Plans and tickets that name it by `snapshot` and `position` are of each shard's own.
    """
    found = all_answers(request, pieces, answers)
    return {name: _by_number(pieces, found, name) for name in found[0][0]}, []


def scrubs(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """How far the scrubs of all shards are, and what the last ones found."""
    found = [header for header, _ in all_answers(request, pieces, answers)]
    return {name: _scrub(pieces, [h[name] for h in found]) for name in ("current", "last")}, []


def _scrub(pieces: Sequence[Piece], passes: Sequence[Header | None]) -> Header | None:
    both = zip(pieces, passes, strict=True)
    known = [(piece.shard, each) for piece, each in both if each is not None]
    if not known:
        return None
    each_of = [each for _, each in known]
    ends = [each["finished_us"] for each in each_of]
    return {
        "started_us": min(each["started_us"] for each in each_of),
        "finished_us": None if None in ends else max(ends),
        "total_bytes": sum(each["total_bytes"] for each in each_of),
        "read_bytes": sum(each["read_bytes"] for each in each_of),
        "findings": [{**f, "shard": shard} for shard, each in known for f in each["findings"]],
    }
