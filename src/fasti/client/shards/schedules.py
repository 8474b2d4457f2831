"""Schedules on several shards: one lives on a shard of its target, by its name's hash among them.

So its messages are emitted where they are handed out, and all that is asked of it is asked of one shard.
The shard is found by asking: a schedule of that name may have been put with another target. A put that
would bring it to another shard is refused as `cross_shard`: what it has emitted ahead stays behind.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from fasti.client.shards.cuts import every_shard
from fasti.client.shards.routing import Answer, Answers, Piece, Request, all_answers, run
from fasti.client.transport import Header
from fasti.core.layout import Layout
from fasti.errors import CrossShard, FastiError, NotFound


def home_of(layout: Layout, name: str) -> int:
    """The shard of a schedule with that name, whose target lies so."""
    from fasti.core.columns.xxh64 import public_hashes

    shards = layout.all_shards
    return shards[int(public_hashes(pa.array([name]))[0]) % len(shards)]


def _target_layout(request: Request, target: str) -> Layout:
    try:
        return request.transport.layout(target)
    except NotFound:
        # It may come. Any topic without a home of its own has its first partition where this one has.
        return Layout(request.transport.shard_count)


def put(request: Request) -> list[Piece]:
    """Each schedule to its shard. Raises `cross_shard` if another one has it."""
    listed = request.header.get("schedules")
    if not isinstance(listed, list) or not all(_is_named(item) for item in listed) or not listed:
        # The broker says what is wrong with it.
        return [Piece(0, request.header)]
    by_shard: dict[int, list[int]] = {}
    for row, item in enumerate(listed):
        layout = _target_layout(request, item["schedule"]["target"])
        by_shard.setdefault(home_of(layout, item["name"]), []).append(row)
    _check_elsewhere(request, listed, by_shard)
    return [
        Piece(
            shard,
            {**request.header, "schedules": [listed[row] for row in rows]},
            (),
            np.array(rows),
        )
        for shard, rows in sorted(by_shard.items())
    ]


def _is_named(item: object) -> bool:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        return False
    schedule = item.get("schedule")
    return isinstance(schedule, dict) and isinstance(schedule.get("target"), str)


def _check_elsewhere(
    request: Request, listed: list[Header], by_shard: dict[int, list[int]]
) -> None:
    """Looks for schedules of these names on the shards where they don't belong."""
    count = request.transport.shard_count
    pieces = [
        Piece(shard, {"topic": request.topic, "name": listed[row]["name"]})
        for home, rows in by_shard.items()
        for row in rows
        for shard in range(count)
        if shard != home
    ]
    asking = replace(request, action="schedules")
    for piece, answer in zip(pieces, run(asking, pieces), strict=True):
        if isinstance(answer, NotFound):
            continue
        if isinstance(answer, FastiError):
            all_answers(asking, [piece], [answer])
        else:
            name = piece.header["name"]
            raise CrossShard(
                f"the schedule {name!r} of {request.topic!r} is on shard {piece.shard}, and its new "
                "target has no place for it there: delete it first, or choose a target with the same "
                "home, partitions and width",
                details={"topic": request.topic, "name": name, "shard": piece.shard},
            )


def put_outcomes(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """An outcome for each, in their order."""
    found = all_answers(request, pieces, answers)
    if len(found) == 1:
        return found[0]
    outcomes: dict[int, Header] = {}
    for piece, (header, _) in zip(pieces, found, strict=True):
        assert piece.rows is not None
        outcomes |= dict(zip(piece.rows.tolist(), header["outcomes"], strict=True))
    return {"outcomes": [outcomes[row] for row in sorted(outcomes)]}, []


def listed(request: Request) -> list[Piece]:
    """A page of every shard; the cursor is a map, in which a shard that came to its end isn't."""
    after = request.header.get("after_number", -1)
    if isinstance(after, dict):
        return [
            Piece(int(shard), {**request.header, "after_number": number})
            for shard, number in after.items()
        ]
    return every_shard(request)


def merged(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """Schedules by name, of as many pages as there are shards."""
    if request.header.get("name"):
        answers = _without_missing(answers)
        pieces = pieces[: len(answers)]
    found = [header for header, _ in all_answers(request, pieces, answers)]
    rows = [row for header in found for row in header["schedules"]]
    after = {
        piece.shard: header["next_after_number"]
        for piece, header in zip(pieces, found, strict=True)
        if header["next_after_number"] is not None
    }
    rows.sort(key=lambda row: str(row["name"]))
    return {"schedules": rows, "next_after_number": after or None}, []


def _without_missing(answers: Answers) -> Answers:
    """A schedule is on one shard: that the others don't have it says nothing."""
    here = [answer for answer in answers if not isinstance(answer, NotFound)]
    return here or answers[:1]


def found(request: Request) -> list[Piece]:
    """To the shard that has the schedule, if one has; without a name to any."""
    name = request.header.get("name")
    if not name:
        return [Piece(0, request.header)]
    asking = replace(request, action="schedules")
    asked = every_shard(replace(asking, header={"topic": request.topic, "name": name}))
    answers = run(asking, asked)
    here = [
        (piece, answer)
        for piece, answer in zip(asked, answers, strict=True)
        if not isinstance(answer, NotFound)
    ]
    for piece, answer in here:
        if not isinstance(answer, FastiError):
            return [Piece(piece.shard, request.header)]
    for piece, answer in here:
        # It may be on that one.
        all_answers(asking, [piece], [answer])
    return [Piece(0, request.header)]
