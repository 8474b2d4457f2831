"""Deciding produce into a log: which partition, which offsets.

Rows go to the partition that is named, to their key's (rendezvous hashing), or, without either,
batch by batch to one partition after another. A batch is one event for each partition it reaches.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.commands import Produce
from fasti.core.keys import Keys, Rows
from fasti.core.log.body import log_of, partition_of
from fasti.core.log.events import LogAppended
from fasti.core.log.partition import APPENDED_BYTES, SCATTERED_ROW_BYTES
from fasti.core.replies import Reply, blank
from fasti.core.state import Topic
from fasti.core.timeline.produce import advance_producer, known_batch
from fasti.core.work import Work
from fasti.errors import InvalidArgument
from fasti.model import SEQUENCE_BITS, OnConflict

Int64s = NDArray[np.int64]


def produce(work: Work, command: Produce) -> Reply:
    """Rows of one log."""
    topic = work.topic(command.topic)
    check_produce(work, topic, command)
    if command.producer:
        known = known_batch(work, command)
        if known is not None:
            return known
    reply = blank(len(command.rows))
    reply.versions[:] = 1
    begin = 0
    for piece in command.rows.split():
        work.bring(piece)
        rows = np.arange(len(piece), dtype=np.int64)
        put_rows(work, topic, command, piece, begin, rows, reply)
        begin += len(piece)
    if command.producer:
        advance_producer(work, topic, command, reply)
    return reply


def check_produce(work: Work, topic: Topic, command: Produce) -> None:
    """Raises `invalid_argument` on what rows of a log can't have."""
    if command.partition is not None:
        partition_of(topic, command.partition)
    rows = len(command.rows)
    touched = min(rows, topic.settings.partitions)
    needed = touched * APPENDED_BYTES + (rows * SCATTERED_ROW_BYTES if touched > 1 else 0)
    work.state.memory.require(needed, "more rows of a log")
    if command.stage:
        raise InvalidArgument("rows of a log can't be staged", field="stage")
    if command.priorities is not None:
        raise InvalidArgument("rows of a log have no priority", field="priority")
    if command.on_conflict != OnConflict.REJECT:
        raise InvalidArgument("in a log a key only routes: none is taken", field="on_conflict")
    when = command.when
    if when.due_us is None and when.delay_us is None:
        return
    if (work.moments(when, len(command.rows)) > work.now_us).any():
        raise InvalidArgument(
            "rows of a log are there at once: due can't lie in the future", field="due"
        )


def choose_partitions(
    topic: Topic, keys: Keys | None, begin: int, count: int, partition: int | None = None
) -> Int64s:
    """Where rows go, `count` of them from `begin` of the keys on: as told, by key, or in turn."""
    partitions = len(log_of(topic).partitions)
    own = topic.own
    if partition is not None or (partitions == 1 and own is None):
        return np.full(count, partition or 0, dtype=np.int64)
    if keys is None:
        return np.full(count, topic.take_turn(), dtype=np.int64)
    numbers = keys.ranked(partitions)[begin : begin + count]
    given = keys.given[begin : begin + count]
    if not given.all():
        numbers = np.where(given, numbers, topic.take_turn())
    if own is not None:
        # Rows that a topic passes on come here unchecked.
        own.check_numbers(topic.name, numbers)
    return numbers


def append(work: Work, topic: Topic, rows: Rows, index: Int64s, numbers: Int64s) -> Int64s:
    """Rows of the frame that is open (`work.bring`) go to these partitions; returns their ids.

    `index` counts up. For produce, and for whoever routes or copies messages into a log.
    """
    ids = np.zeros(len(index), dtype=np.int64)
    row_bytes = len(rows.encoded) / max(1, len(rows))
    first = int(numbers[0])
    if (numbers == first).all():
        places: list[tuple[int, Any]] = [(first, slice(None))]
    else:
        places = list(_by_number(numbers))
    for number, mine in places:
        offset = log_of(topic).partitions.look(number).next_offset
        row = index[mine]
        size_bytes = int(row_bytes * len(row))
        ids[mine] = np.arange(offset + 1, offset + 1 + len(row)) | number << SEQUENCE_BITS
        work.emit(LogAppended(work.now_us, topic.number, number, offset, size_bytes, row))
    return ids


def _by_number(numbers: Int64s) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """The places of each number, in order."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    bounds = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(order)]
    for begin, end in pairwise(bounds):
        yield int(ordered[begin]), order[begin:end]


def put_rows(
    work: Work, topic: Topic, command: Produce, piece: Rows, begin: int, rows: Int64s, reply: Reply
) -> None:
    """Rows of the open frame, which holds the command's rows from `begin` on, go to this log."""
    if not len(rows):
        return
    numbers = choose_partitions(topic, command.keys, begin, len(piece), command.partition)
    reply.ids[begin + rows] = append(work, topic, piece, rows, numbers[rows])
