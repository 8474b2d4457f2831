"""Transactions on several shards: all rows lie on one, or nothing is sent.

Ids, keys and partitions decide a row's shard. Rows without any of these may go to each shard that has a
partition of their topic, so they go where the others are; if there are no others, the shards that have
all topics take turns.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from fasti.client.shards.cuts import CATALOGUE, shards_of_rows
from fasti.client.shards.routing import Piece, Request
from fasti.client.transport import Header
from fasti.core.layout import Layout
from fasti.errors import CrossShard

_turns = itertools.count()
_REMEDY = (
    "What must happen together has to lie on one shard: topics with the same home, partitions and "
    "width have equal keys on equal shards"
)


def transaction(request: Request) -> list[Piece]:
    """To the shard of all its rows. Raises `cross_shard`."""
    commands = request.header.get("commands")
    if not isinstance(commands, list) or len(commands) != len(request.parts) or not commands:
        # The broker says what is wrong with it.
        return [Piece(0, request.header, request.parts)]
    places: list[tuple[str, list[int]]] = []
    free: list[tuple[str, Layout]] = []
    for command, part in zip(commands, request.parts, strict=True):
        if not isinstance(command, dict) or not isinstance(command.get("topic"), str):
            return [Piece(0, request.header, request.parts)]
        layout = request.transport.layout(command["topic"])
        fixed, has_free = shards_of_command(layout, command, part)
        if fixed:
            places.append((command["topic"], fixed))
        if has_free:
            free.append((command["topic"], layout))
    return [Piece(one_shard(places, free), request.header, request.parts)]


def shards_of_command(
    layout: Layout, command: Header, part: pa.RecordBatch
) -> tuple[list[int], bool]:
    """The shards that rows of a command must go to, and whether it has rows that may go to any."""
    if command.get("op") != "produce":
        shards = shards_of_rows(layout, part)
        return ([], True) if shards is None else (np.unique(shards).tolist(), False)
    partition = command.get("partition")
    if type(partition) is int:
        return [layout.shard_of(partition)], False
    if "key" not in part.schema.names:
        return [], True
    keys = part.column("key")
    shards = shards_of_rows(layout, part)
    if shards is None:
        return [], True
    given = np.asarray(keys.is_valid())
    return np.unique(shards[given]).tolist(), not given.all()


def one_shard(
    places: Sequence[tuple[str, Sequence[int]]], free: Sequence[tuple[str, Layout]]
) -> int:
    """The shard where all of it can happen: of topics and the shards that their rows must go to, and of
    those with rows that may go to any shard of theirs. Raises `cross_shard`.
    """
    needed = {shard for _, shards in places for shard in shards}
    if len(needed) > 1:
        raise _refusal([(topic, sorted(shards)) for topic, shards in places])
    allowed = [set(layout.all_shards) for _, layout in free]
    if needed:
        allowed.append(needed)
    possible = set.intersection(*allowed) if allowed else {CATALOGUE}
    if not possible:
        raise _refusal([*places, *((topic, layout.all_shards) for topic, layout in free)])
    choice = sorted(possible)
    return choice[next(_turns) % len(choice)]


def _refusal(places: Sequence[tuple[str, Sequence[int]]]) -> CrossShard:
    named: dict[str, set[int]] = {}
    for topic, shards in places:
        named.setdefault(topic, set()).update(shards)
    where = "; ".join(
        f"{topic!r} on {'shards' if len(shards) > 1 else 'shard'} "
        + ", ".join(map(str, sorted(shards)[:8]))
        for topic, shards in list(named.items())[:8]
    )
    return CrossShard(
        f"nothing was done: the rows lie on several shards ({where}). {_REMEDY}",
        details={"topics": {topic: sorted(shards) for topic, shards in named.items()}},
    )
