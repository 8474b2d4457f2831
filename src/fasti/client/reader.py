"""Readers of logs: rows in the order of their offsets, from anywhere, to the end or on and on.

Nothing is leased and nothing acknowledged: where a reader is, it alone knows (`position`). A reader
is for one thread at a time; `close` is for any. When the connection is lost it connects again and
goes on behind the last row that it gave out: none is missing and none comes twice.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator
from contextlib import suppress

import pyarrow as pa

from fasti.client.arguments import ArrowTable
from fasti.client.changes import all_shards
from fasti.client.durations import Duration, seconds
from fasti.client.following import Followings
from fasti.client.log_message import LogMessage, Rows
from fasti.client.log_place import EARLIEST, Start, place_header
from fasti.client.pauses import PASSING
from fasti.client.transport import LOCATION, Header, Transport
from fasti.errors import Closed, FastiError, Gone, InvalidArgument

# A read that doesn't follow is given up when nothing came for so long.
_PATIENCE_S = 30.0


class Reader:
    """Made by `client.reader(topic)`. Iterate over it, or over `batches(...)`.

        for message in client.reader("events", start="earliest"):
            handle(message.offset, message.payload)

        with client.reader("events", start=saved, follow=True) as reader:
            for message in reader:
                handle(message)
                saved = reader.position

    Raises `gone` when the next row was dropped by retention or truncation: its details say
    `partition` and `earliest`. Rows of one partition come in the order of their offsets; without
    `follow` one partition comes after the other.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        *,
        start: Start = "earliest",
        partition: int | None = None,
        follow: bool = False,
        timeout: Duration | None = None,
    ) -> None:
        self.topic = topic
        self.follow = follow
        self._transport = transport
        self._place = place_header(start, partition)
        self._timeout_s = seconds(timeout, "timeout")
        # Of each partition, the offset of the next row; those that still stand at the beginning
        # have it only as a guess.
        self._position: dict[int, int] = {}
        self._anew: set[int] = set()
        # Of each partition, where a read that doesn't follow ends.
        self._ends: dict[int, int] = {}
        # Of each partition, where its rows are, if the plan says so.
        self._brokers: dict[int, Header] = {}
        self._begun = False
        # Rows that came, and how many of them were given out.
        self._rows: Rows | None = None
        self._row = 0
        self._plain: Generator[pa.RecordBatch, None, None] | None = None
        self._shards = all_shards(transport)
        # Of each partition, the number of its shard.
        self._shard_of: dict[int, int] = {}
        self._following = Followings(self._shards)
        self._gone = weakref.finalize(self, self._following.close)
        self._gone.atexit = False

    @property
    def position(self) -> dict[int, int]:
        """Of each partition, the offset of the next row: a reader that starts there goes on here.

        Empty until it has begun: in a `with` block, or when it is iterated over.
        """
        position = dict(self._position)
        if self._rows is not None:
            position[self._rows.partition] = self._rows.first_offset + self._row
        return position

    @property
    def closed(self) -> bool:
        """Whether it gives out nothing more."""
        return self._following.closed

    def begin(self) -> None:
        """Finds out where it begins, if it has not: what `latest` and the end are is settled then.

        Called by `with` and by iterating.
        """
        self._check_open()
        if not self._begun:
            self._plan(self._place)
            if self._place.get("start") == "earliest":
                self._anew = set(self._position)
            self._begun = True

    def __iter__(self) -> Iterator[LogMessage]:
        self.begin()
        return self._messages()

    def __next__(self) -> LogMessage:
        self.begin()
        for message in self._messages():
            return message
        raise StopIteration

    def _messages(self) -> Generator[LogMessage, None, None]:
        while self.more():
            rows = self._rows
            assert rows is not None
            for row in range(self._row, rows.count):
                self._row = row + 1
                yield LogMessage(rows, row)

    def batches(self, count: int = 10_000) -> Iterator[ArrowTable]:
        """Tables of up to `count` rows, as soon as there are some.

        The columns are `partition`, `offset`, `created_us`, `key`, `headers`, `content_type`,
        `subject` and `payload`.
        """
        if count < 1:
            raise InvalidArgument("count must be at least 1", field="count", limit=1)
        self.begin()
        return self._tables(count)

    def _tables(self, count: int) -> Generator[pa.Table, None, None]:
        while self.more():
            table = self.take_table(count)
            assert table is not None
            yield table

    # Without waiting

    def take_message(self) -> LogMessage | None:
        """The next row, if it is here."""
        rows, row = self._rows, self._row
        if rows is None or row >= rows.count:
            return None
        self._row = row + 1
        return LogMessage(rows, row)

    def take_table(self, count: int) -> ArrowTable | None:
        """Up to `count` rows that are here."""
        rows = self._rows
        if rows is None or self._row >= rows.count:
            return None
        batch = rows.batch.slice(self._row, count)
        self._row += batch.num_rows
        return pa.Table.from_batches([batch])

    def more(self) -> bool:
        """Waits until a row is here that was not given out; False at the end, or out of time.

        Raises what iterating raises.
        """
        rows = self._rows
        if rows is not None:
            if self._row < rows.count:
                return True
            self._position[rows.partition] = rows.first_offset + rows.count
            self._rows = None
        if self.closed:
            return False
        if not self._begun:
            self.begin()
        batch = self._next_batch()
        if batch is None:
            return False
        rows = Rows(self.topic, batch)
        self._anew.discard(rows.partition)
        self._row = 0
        self._rows = rows
        return True

    def _next_batch(self) -> pa.RecordBatch | None:
        until = self._following.deadline(self._timeout_s)
        if self.follow:
            return self._followed(until)
        if self._plain is None:
            self._plain = self._read_all()
        batch = None
        try:
            batch = next(self._plain, None)
        finally:
            # After trouble, and after the end, the next read begins where this one is.
            if batch is None:
                self._plain = None
        return batch

    # Without following

    def _read_all(self) -> Generator[pa.RecordBatch, None, None]:
        """What was there when the reader began, or is now, if all of that was read before."""
        if all(self._position[number] >= end for number, end in self._ends.items()):
            self._plan({"offsets": {str(number): at for number, at in self._position.items()}})
        for partition in sorted(self._ends):
            until = self._following.deadline(_PATIENCE_S)
            while self._position[partition] < self._ends[partition]:
                try:
                    shard = self._shards[self._shard_of[partition]]
                    for batch in shard.read(self._ticket(partition)):
                        if self._following.closed:
                            return
                        if batch.num_rows:
                            yield batch
                            until = self._following.deadline(_PATIENCE_S)
                except FastiError as error:
                    self._bear(error, partition, until)
                else:
                    if self._position[partition] < self._ends[partition]:
                        self._bear(Closed("the read ended too early"), partition, until)

    def _ticket(self, partition: int) -> Header:
        return {
            **self._brokers.get(partition, {}),
            "call": "log",
            "topic": self.topic,
            "partition": partition,
            "offset": self._position[partition],
            "end_offset": self._ends[partition],
        }

    def _bear(self, error: FastiError, partition: int, until: float | None) -> None:
        """Trouble that may pass is waited for; what doesn't is raised."""
        # A broker that was named may have gone: any of the address knows more.
        self._brokers.pop(partition, None)
        if isinstance(error, Gone) and partition in self._anew:
            self._position[partition] = int(error.details["earliest"])
            return
        if self._following.closed:
            raise Closed(f"the reader of {self.topic!r} is closed")
        if error.code not in PASSING or not self._following.wait(0, error, until):
            raise error

    def _plan(self, place: Header) -> None:
        """Where each partition is begun and, without following, ended. Asked once: what is the end
        by now is another end after a reconnection.
        """
        until = self._following.deadline(_PATIENCE_S)
        tickets: list[tuple[int, Header]] = []
        while not tickets:
            try:
                tickets = [
                    (number, ticket)
                    for number, mine in self._by_shard(place).items()
                    for ticket in self._shards[number].plan(
                        {"call": "log", "topic": self.topic, **mine}
                    )
                ]
            except FastiError as error:
                self._bear(error, -1, until)
        self._shard_of = {int(ticket["partition"]): number for number, ticket in tickets}
        self._position = {int(ticket["partition"]): int(ticket["offset"]) for _, ticket in tickets}
        self._ends = {int(ticket["partition"]): int(ticket["end_offset"]) for _, ticket in tickets}
        self._brokers = {
            int(ticket["partition"]): {LOCATION: ticket[LOCATION]}
            for _, ticket in tickets
            if LOCATION in ticket
        }
        self._following.keep_to(sorted(set(self._shard_of.values())))

    def _by_shard(self, place: Header) -> dict[int, Header]:
        """What each shard that has something of it is asked for."""
        if len(self._shards) == 1:
            return {0: place}
        # The topic may have been made anew since it was asked for.
        self._transport.forget_layout(self.topic)
        layout = self._transport.layout(self.topic)
        if "offset" in place and "partition" not in place and layout.partitions > 1:
            raise InvalidArgument(
                "an offset belongs to one partition: name the partition", field="partition"
            )
        if place.get("offsets"):
            places: dict[int, Header] = {}
            for number, offset in place["offsets"].items():
                shard = layout.shard_of(int(number))
                places.setdefault(shard, {"offsets": {}})["offsets"][number] = offset
            return places
        if "partition" in place:
            return {layout.shard_of(place["partition"]): place}
        return dict.fromkeys(layout.all_shards, place)

    # Following

    def _follow_place(self, number: int) -> Header:
        """From where a shard's partitions are followed."""
        at = {
            str(partition): EARLIEST if partition in self._anew else offset
            for partition, offset in self._position.items()
            if self._shard_of[partition] == number
        }
        return {"call": "follow", "topic": self.topic, "offsets": at}

    def _followed(self, until: float | None) -> pa.RecordBatch | None:
        following = self._following
        while True:
            taken = following.take(until, self._follow_place)
            if taken is None:
                return None
            number, item = taken
            if not isinstance(item, FastiError):
                if item[1] is not None and item[1].num_rows:
                    return item[1]
                continue
            following.end(number)
            if following.closed:
                return None
            if isinstance(item, Gone) and item.details.get("partition") in self._anew:
                continue  # Only the first of all is gone: the next one is the first now.
            if item.code not in PASSING:
                raise item
            if not following.pause(number, item, until):
                return None

    # The end

    def _check_open(self) -> None:
        if self._following.closed:
            raise Closed(f"the reader of {self.topic!r} is closed")

    def close(self) -> None:
        """Ends the iteration. Again: nothing happens."""
        self._following.close()
        plain = self._plain
        if plain is not None:
            # Unless another thread reads: that one notices by itself.
            with suppress(ValueError):
                plain.close()

    def __enter__(self) -> Reader:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Reader of {self.topic!r}>"
