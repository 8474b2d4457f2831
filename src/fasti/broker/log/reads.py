"""Reads of logs: rows in the order of their offsets, as many as there were when the read began.

Rows are located by the engine, a page at a time, and read here, in the thread that wants them. A
range of a frame or block is a slice of it: nothing is copied. A checkpoint may move rows between
the two; then the engine is asked again. Any thread; a cursor is for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.listed import columns_of, words
from fasti.broker.calls.requests import INT64_MAX
from fasti.broker.reading import MOVED
from fasti.core.log.commands import DescribeLog, FindOffset, LogPage, LogPiece, ReadLog
from fasti.core.ownership import OwnPartitions, own_partitions
from fasti.errors import Gone, InvalidArgument
from fasti.protocol.schemas import LOG_ROWS, VERSION
from fasti.storage import log_rows
from fasti.storage.runs import PAYLOAD_SCHEMA

if TYPE_CHECKING:
    from fasti.broker.service import Service

Header = dict[str, Any]

EARLIEST, LATEST = -1, -2
STARTS = {"earliest": EARLIEST, "latest": LATEST}
# Rows that the engine locates at once: some numbers for each piece of them.
_PAGE_ROWS = 65_536
# Small pieces travel together until they have about so much.
_GATHER_ROWS = 4_096
# A reader that says which columns it wants reads in bulk.
_BULK_ROWS = 65_536
# A frame may have 64 MiB: no reader has to take so much at once.
_BATCH_BYTES = 16 << 20
_TRIES = 16
_FIELDS: Header = {
    "topic": str,
    "partition": None,
    "offset": None,
    "time_us": None,
    "start": "",
    "offsets": {},
    "end_offset": None,
    "limit": None,
    "columns": [],
}
_PLACES = ("offset", "time_us", "start", "offsets")


class LogCursor:
    """A place in one partition, from which rows are read on.

    With `anew` it began at the earliest row, whichever that is: if that one is dropped before the
    first was read, it goes on with the next that is there.
    """

    def __init__(
        self,
        service: Service,
        topic: str,
        partition: int,
        offset: int,
        anew: bool = False,
        columns: Sequence[str] = (),
    ) -> None:
        self._service, self._topic = service, topic
        self._shard = service.placement.shard_of(topic, partition)
        self.partition, self.offset = partition, offset
        # The offset behind the last row, as of the last page.
        self.end = offset
        self._anew = anew
        self._tries = 0
        self.schema = columns_of(LOG_ROWS, list(columns)) if columns else LOG_ROWS
        self._stored = pa.schema([f for f in PAYLOAD_SCHEMA if f.name in self.schema.names])
        self._gather_rows = _BULK_ROWS if columns else _GATHER_ROWS

    def page(self, upto: int | None = None) -> Iterator[pa.RecordBatch]:
        """The next rows below `upto`, as LOG_ROWS: some of them, or none at the end.

        Raises `gone` when the next row was dropped; its details say `earliest`.
        """
        most = _PAGE_ROWS if upto is None else min(_PAGE_ROWS, upto - self.offset)
        if most <= 0:
            return
        pieces = self._located(most).pieces
        waiting: list[pa.RecordBatch] = []
        for piece in pieces:
            contents = self._contents(piece)
            if contents is None:
                break
            begin = self.offset - piece.first_offset
            count = min(piece.count - begin, most)
            contents = contents.slice(begin, count)
            if waiting and _rows(waiting) + count > self._gather_rows:
                yield from _cut(waiting)
                waiting = []
            waiting.append(self._as_rows(contents, count))
            self.offset += count
            most -= count
        if waiting:
            yield from _cut(waiting)

    def _as_rows(self, contents: pa.RecordBatch, count: int) -> pa.RecordBatch:
        """Contents that lie behind each other, from where it is."""
        arrays = []
        for name in self.schema.names:
            if name == "partition":
                arrays.append(pa.array(np.full(count, self.partition, dtype=np.int32)))
            elif name == "offset":
                arrays.append(pa.array(np.arange(self.offset, self.offset + count)))
            else:
                arrays.append(contents.column(name))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _located(self, most: int) -> LogPage:
        while True:
            try:
                command = ReadLog(self._topic, self.partition, self.offset, most)
                found: LogPage = self._service.command(command)
                if self.offset < found.earliest:
                    raise gone(self._topic, self.partition, self.offset, found.earliest)
            except Gone as error:
                if not self._anew:
                    raise
                self.offset = int(error.details["earliest"])
            else:
                self.end = found.end
                return found

    def _contents(self, piece: LogPiece) -> pa.RecordBatch | None:
        """The rows of a piece; None if they have moved since they were located."""
        try:
            payloads = self._shard.store.payloads
            contents = log_rows.read_piece(payloads, piece, self._stored)
            contents = log_rows.with_losses(payloads, piece, contents)
        except MOVED:
            self._tries += 1
            if self._tries > _TRIES:
                raise
            return None
        self._tries, self._anew = 0, False
        return contents

    @property
    def moving(self) -> bool:
        """Whether the last page ended because its rows had moved: there is more to read."""
        return self._tries > 0


def _rows(batches: list[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def _cut(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As one batch, or as several that are small enough to travel."""
    joined = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    if joined.nbytes <= _BATCH_BYTES or joined.num_rows == 1:
        yield joined
        return
    middle = joined.num_rows // 2
    yield from _cut([joined.slice(0, middle)])
    yield from _cut([joined.slice(middle)])


def gone(topic: str, partition: int, offset: int, earliest: int) -> Gone:
    """The answer to a reader that asks for a row that was dropped."""
    return Gone(
        f"offset {offset} of partition {partition} of {topic!r} was dropped: "
        f"the earliest is {earliest}",
        details={"partition": partition, "earliest": earliest},
    )


# Where to begin


class KnownLog:
    """A log as it was a moment ago: of each partition that the shard has `earliest`, `end` and the
    rest, by its number. Raises `not_found`.
    """

    def __init__(self, service: Service, topic: str) -> None:
        self.topic = topic
        described: list[Header] = service.command(DescribeLog(topic)).value
        self.partitions = {int(each["partition"]): each for each in described}
        self.count = len(described)
        self._own: OwnPartitions | None = None
        place = service.placement.shard_of(topic).place
        if place.count > 1:
            settings = service.require_topic(topic)
            self.count, self._own = settings.partitions, own_partitions(settings, place)

    def chosen(self, partition: int | None) -> list[int]:
        """The partitions that are meant: one, or all that the shard has. Raises `wrong_shard`."""
        if partition is None:
            return list(self.partitions)
        if not 0 <= partition < self.count:
            raise InvalidArgument(
                f"there is no partition {partition}: there are {self.count}",
                field="partition",
                limit=self.count - 1,
            )
        if self._own is not None:
            self._own.check_numbers(self.topic, np.array([partition]))
        return [partition]

    def named_offsets(self, offsets: Header) -> dict[int, int]:
        """Offsets by partition, as JSON has them: `{"0": 17}`."""
        found = {}
        for name, offset in offsets.items():
            if not name.isdecimal() or len(name) > 4:
                raise InvalidArgument(f"{name!r} is not a partition", field="offsets")
            number = self.chosen(int(name))[0]
            if not isinstance(offset, int) or isinstance(offset, bool) or abs(offset) > INT64_MAX:
                raise InvalidArgument(f"{offset!r} is not an offset", field="offsets")
            found[number] = offset
        return found


def offset_at(service: Service, topic: str, partition: int, time_us: int) -> int:
    """The first offset whose row was appended at that time or later; the end if none was."""
    shard = service.placement.shard_of(topic, partition)
    for _ in range(_TRIES):
        found: LogPage = service.command(FindOffset(topic, partition, time_us))
        if not found.pieces:
            return found.end
        piece = found.pieces[0]
        try:
            offset = log_rows.offset_at(shard.store.payloads, piece, time_us)
        except MOVED:
            continue
        return max(found.earliest, offset)
    raise Gone(f"partition {partition} of {topic!r} moved while it was read")


class Begin:
    """Where a read begins in each of its partitions."""

    def __init__(self, service: Service, fields: Header) -> None:
        self._service, self._topic = service, fields["topic"]
        self._known = KnownLog(service, self._topic)
        given = [name for name in _PLACES if fields[name] not in (None, "", {})]
        if len(given) > 1:
            raise InvalidArgument(
                f"{given[0]} and {given[1]} can't be used together", field=given[1]
            )
        # At the earliest rows, whichever those are by then.
        self.anew: set[int] = set()
        self.offsets: dict[int, int] = {}
        partition = requests.integer(fields, "partition")
        if fields["offsets"]:
            self._take_given(fields["offsets"], partition)
            return
        chosen = self._known.chosen(partition)
        if fields["offset"] is not None and len(chosen) > 1:
            raise InvalidArgument(
                "an offset belongs to one partition: name the partition", field="partition"
            )
        for number in chosen:
            self.offsets[number] = self._found(number, fields)

    def _take_given(self, offsets: Header, partition: int | None) -> None:
        if partition is not None:
            raise InvalidArgument(
                "offsets name their partitions: leave partition out", field="partition"
            )
        for number, offset in self._known.named_offsets(offsets).items():
            self.offsets[number] = self._placed(number, offset)

    def _found(self, number: int, fields: Header) -> int:
        offset, time_us = requests.integer(fields, "offset"), requests.integer(fields, "time_us")
        if time_us is not None:
            return offset_at(self._service, self._topic, number, time_us)
        if offset is None:
            offset = start_of(fields["start"] or "earliest")
        return self._placed(number, offset)

    def _placed(self, number: int, offset: int) -> int:
        known = self._known.partitions[number]
        if offset == EARLIEST:
            self.anew.add(number)
            return int(known["earliest"])
        if offset == LATEST:
            return int(known["end"])
        if not 0 <= offset <= known["end"]:
            raise InvalidArgument(
                f"offset {offset} of partition {number} is not there yet: "
                f"the next row will have {known['end']}",
                field="offset",
                limit=known["end"],
            )
        return offset

    def cursors(self, columns: Sequence[str] = ()) -> list[LogCursor]:
        """One for each partition that is read."""
        return [
            LogCursor(self._service, self._topic, number, offset, number in self.anew, columns)
            for number, offset in self.offsets.items()
        ]

    def end(self, partition: int, wanted: int | None) -> int:
        """Where a read that doesn't follow ends."""
        end = int(self._known.partitions[partition]["end"])
        return end if wanted is None else min(wanted, end)


def start_of(word: str) -> int:
    """EARLIEST or LATEST."""
    if word not in STARTS:
        raise InvalidArgument(f"{word!r} is neither earliest nor latest", field="start")
    return STARTS[word]


class LogReads:
    """The tickets `log` of a broker."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def plan(self, caller: Caller, descriptor: Header) -> tuple[pa.Schema, list[Header]]:
        """A ticket for each partition, from where it begins to what is its end by now."""
        fields = requests.checked(descriptor, **_FIELDS)
        begin = Begin(self._service, fields)
        base = {"version": VERSION, "call": "log", "topic": fields["topic"]}
        if fields["limit"] is not None:
            base["limit"] = fields["limit"]
        if fields["columns"]:
            base["columns"] = fields["columns"]
        wanted = requests.integer(fields, "end_offset")
        return LOG_ROWS, [
            {**base, "partition": n, "offset": offset, "end_offset": begin.end(n, wanted)}
            for n, offset in begin.offsets.items()
        ]

    def read(self, caller: Caller, ticket: Header) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The rows, one partition after the other. Refusals are raised here."""
        fields = requests.checked(ticket, **_FIELDS)
        limit = requests.integer(fields, "limit")
        if limit is not None and limit < 0:
            raise InvalidArgument("a limit can't be negative", field="limit", limit=0)
        begin = Begin(self._service, fields)
        wanted = requests.integer(fields, "end_offset")
        columns = words(fields, "columns")
        schema = columns_of(LOG_ROWS, columns) if columns else LOG_ROWS
        cursors = [(each, begin.end(each.partition, wanted)) for each in begin.cursors(columns)]
        pages = _limited(self._all(cursors), limit)
        first = next(pages, None)
        return schema, _with_first(first, pages, schema)

    def _all(self, cursors: list[tuple[LogCursor, int]]) -> Iterator[pa.RecordBatch]:
        for cursor, end in cursors:
            while cursor.offset < end:
                # A long read doesn't hold up the broker's end: it goes on at the next one.
                if self._service.stopping:
                    raise self._service.unavailable()
                yield from cursor.page(end)


def _limited(pages: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    if limit is None:
        yield from pages
        return
    while limit > 0 and (page := next(pages, None)) is not None:
        yield page.slice(0, limit)
        limit -= page.num_rows


def _with_first(
    first: pa.RecordBatch | None, rest: Iterator[pa.RecordBatch], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    if first is None:
        yield pa.RecordBatch.from_pylist([], schema=schema)
        return
    yield first
    yield from rest
