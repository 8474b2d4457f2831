"""Messages whose payload can't be read any more: dead, with the reason `corrupt`.

The broker's storage tells of them (whoever met the damage: a delivery, a checkpoint, a scrub), with the
place where the payload was. A message that has another payload by now, or that has ended, is left alone.
A staged one is left too: it is found again when it lands and is delivered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fasti.core import events as ev
from fasti.core.columns import codes
from fasti.core.command import ByIds
from fasti.core.commands import Target
from fasti.core.replies import Reply, blank
from fasti.core.timeline.judging import locate, mark_repeated
from fasti.core.work import Work
from fasti.model import Outcome

Int64s = NDArray[np.int64]

CORRUPT = "corrupt"


@dataclass(slots=True)
class GiveUp(ByIds):
    """The payloads of these messages, at these places, are lost."""

    topic: str
    ids: Int64s
    locations: Int64s
    # Of a log: for which group. Rows stay in the log, so only those that it has leased are meant.
    group: str = ""


def give_up(work: Work, command: GiveUp) -> Reply:
    """Decides it: `ok` where a message is dead now, `conflict` where nothing was to be done."""
    topic = work.topic(command.topic)
    reply = blank(len(command.ids))
    for piece in locate(topic, Target(ids=command.ids), reply):
        states = piece.states
        here = piece.partition.arena.location.take(piece.slots, mode="clip")
        lost = (states == codes.SCHEDULED) | (states == codes.LEASED)
        lost &= here == command.locations[piece.rows]
        status = np.where(lost, Outcome.OK, Outcome.CONFLICT).astype(np.uint8)
        mark_repeated(piece, status)
        reply.status[piece.rows] = status
        where = (work.now_us, topic.number, piece.partition.number, CORRUPT)
        for state in (codes.SCHEDULED, codes.LEASED):
            chosen = (status == codes.OK) & (states == state)
            if chosen.any():
                work.emit(ev.Lapsed(*where, piece.sequences[chosen]))
    return reply
