"""Messages that come too late for anybody: dead from the start, with a reason.

They are produced and die in one group, so no consumer ever gets them; they can be listed, redriven
and purged like every dead message.
"""

from __future__ import annotations

from dataclasses import dataclass

from fasti.core import events as ev
from fasti.core.command import WithPayloads
from fasti.core.commands import Produce
from fasti.core.keys import Rows
from fasti.core.replies import Reply
from fasti.core.timeline import produce
from fasti.core.work import Work, split_ids
from fasti.errors import InvalidArgument


@dataclass(slots=True)
class Bury(WithPayloads):
    """Puts messages into a topic as dead ones. They have no key: the dead hold none."""

    topic: str
    rows: Rows
    reason: str


def bury(work: Work, command: Bury) -> Reply:
    """Decides it: the ids of the dead. Never refuses half of its rows."""
    topic = work.topic(command.topic)
    if "key" in command.rows.names:
        raise InvalidArgument("a message that is born dead has no key", field="key")
    limit = work.limits.reason_bytes_max
    if len(command.reason.encode()) > limit:
        raise InvalidArgument(f"a reason has at most {limit} bytes", field="reason", limit=limit)
    made = Produce(command.topic, command.rows)
    produce.check_rows(made)
    reply = produce.produce(work, made)
    for number, _, sequences in split_ids(reply.ids, len(topic.partitions)):
        work.emit(ev.Lapsed(work.now_us, topic.number, number, command.reason, sequences))
    return reply
