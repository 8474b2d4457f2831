"""Deciding the acks of a step together.

A hundred consumers that ack a few messages each are a hundred small commands, and each would cost
an event and a frame of its own, more than its rows are worth. As long as all of them come out ok,
which nearly always is so, they are one event. If a single row would not be, each command is decided
by itself, as if nothing had been tried.

Credits don't change messages and are looked at when the step ends, so acks on both sides of a
credit are still side by side. Any other command, and a credit that takes a consumer's name (its
leases get new tokens), keeps what came before it from what comes after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.reductions import some
from fasti.core.commands import Ack, Lease
from fasti.core.replies import Reply, blank
from fasti.core.work import Work, column
from fasti.errors import FastiError

Int64s = NDArray[np.int64]


def find_acks(inputs: Sequence[Any], is_credit: Callable[[Lease], bool]) -> dict[int, list[int]]:
    """Acks that can be decided together: the places of each such set, by the first of them."""
    sets: dict[int, list[int]] = {}
    first: dict[tuple[str, str], int] = {}
    for place, command in enumerate(inputs):
        if type(command) is Ack:
            whose = command.topic, command.group
            sets.setdefault(first.setdefault(whose, place), []).append(place)
        elif type(command) is not Lease or not is_credit(command):
            first.clear()
    return {place: places for place, places in sets.items() if len(places) > 1}


def ack_together(work: Work, acks: Sequence[Ack]) -> list[Reply] | None:
    """The replies of several acks on one topic, or in one group of a log.

    None, and nothing done, if a row is not ok, or if there is none: no event is about nothing.
    """
    if not any(len(ack.ids) for ack in acks):
        return None
    try:
        topic = work.topic(acks[0].topic)
        tokens = np.concatenate([column(ack.tokens, len(ack.ids), "token") for ack in acks])
        ids = np.concatenate([ack.ids for ack in acks])
        started = np.concatenate([column(ack.started_us, len(ack.ids), "started") for ack in acks])
        place = topic.kind.leasable(topic, acks[0].group)
    except FastiError:
        return None
    reply = blank(len(ids))
    pieces = list(place.locate(ids, reply))
    for piece in pieces:
        if some(piece.judge(work, tokens[piece.rows])):
            return None
    if some(reply.status):
        return None
    for piece in pieces:
        ordered = piece.in_order(len(ids))
        ordered.ack(work, started[ordered.rows])
        ordered.note_versions(reply)
    return _split(reply, acks)


def _split(reply: Reply, acks: Sequence[Ack]) -> list[Reply]:
    replies, begin = [], 0
    for ack in acks:
        end = begin + len(ack.ids)
        rows = slice(begin, end)
        replies.append(Reply(reply.status[rows], reply.ids[rows], reply.versions[rows]))
        begin = end
    return replies
