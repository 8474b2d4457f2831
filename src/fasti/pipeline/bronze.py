"""Bronze: the change feed as a table, `transitions`, by day and topic.

Tasks read the feed from position to position and write Parquet files themselves, Arrow from end to
end: no row passes through the JVM. The driver commits a step's files together with the position
behind them, in the feed of each shard, so the table always has exactly what lies before its positions.

A topic with many rows in a step has files of its own (`part` is its name); those with few share one
(`part` is `~small`), with the smallest and largest name known: ten thousand topics make no ten
thousand files. `topic` itself is a column like others.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fasti.errors import Gone, NotFound
from fasti.pipeline.files import folder_of, replace_text
from fasti.pipeline.shared import attempt_id, parallelism
from fasti.protocol.feed_name import is_nameless
from fasti.spark.connection import client_of
from fasti.spark.errors import as_spark_errors
from fasti.spark.patience import rows_of
from fasti.spark.shards import even_share
from fasti.spark.views import View

if TYPE_CHECKING:
    from fasti.pipeline.lake import Lake
    from fasti.pipeline.runner import StageRun

SMALL = "~small"
# A step is at most about so many rows: what is done again after a kill.
STEP_ROWS = 4_000_000
# Rows are sorted by topic so many at a time, which become a row group.
_CHUNK_ROWS, _CHUNK_BYTES = 262_144, 64 << 20
# A topic with so many rows in a chunk gets files of its own, up to so many topics at a time.
_OWN_ROWS, _OWN_TOPICS = 16_384, 32
_SAFE = re.compile(r"[A-Za-z0-9.-][A-Za-z0-9._-]*")


def transaction(shard: str) -> str:
    """The name under which bronze keeps its position in a shard's feed."""
    return f"feed:{shard}"


@dataclass(slots=True)
class FeedCopy:
    """How far the lake is in the feed of a shard, and where this run ends."""

    number: int
    feed: str
    after: int
    target: int

    @property
    def left(self) -> int:
        """Frames that are to be copied."""
        return max(0, self.target - self.after)


def update(run: StageRun) -> int:
    """Brings the table up to where the feeds end now. Returns how many rows came."""
    transport = run.client.transport
    feeds = []
    for number in range(transport.shard_count):
        header, _ = transport.shard(number).call("feed", {})
        shard = header["shard"]
        after = starting_position(run, shard, number)
        feeds.append(FeedCopy(number, shard, after, int(header["last"])))
    total = sum(feed.left for feed in feeds)
    done = 0
    while any(feed.left for feed in feeds) and not run.stopping():
        done += step(run, [feed for feed in feeds if feed.left])
        passed = total - sum(feed.left for feed in feeds)
        run.progress(done, done * total // passed)
    return done


def step(run: StageRun, feeds: list[FeedCopy]) -> int:
    """The next rows of each feed, in one commit."""
    rows = max(1, int(run.option("step_rows", STEP_ROWS)) // len(feeds))
    spans = []
    for feed in feeds:
        fields = {"shard": feed.feed, "after": feed.after, "rows": rows}
        header, _ = run.client.transport.shard(feed.number).call("feed", fields)
        spans.append(replace(feed, target=min(int(header["position"]), feed.target)))
    done = copy(run, spans)
    for feed, span in zip(feeds, spans, strict=True):
        feed.after = span.target
    return done


def starting_position(run: StageRun, shard: str, number: int = 0) -> int:
    """Where the lake is in the feed of a shard. Raises `gone` if the feed begins later by now."""
    transport = run.client.transport
    bounds, _ = transport.shard(number).call("feed", {})
    table, first = run.lake.bronze, int(bounds["first"])
    after = table.position(transaction(shard))
    if after is None:
        others = [other for other in shards(run.lake) if other != shard]
        if transport.shard_count > 1:
            # Other lives of this shard: the feeds of other shards are in the lake, too.
            mine = f"{number}."
            others = [other for other in others if other.startswith(mine) or is_nameless(other)]
        if any(is_nameless(other) for other in others):
            raise Gone(
                f"the lake {run.lake.root} was written by an older version, whose positions did not "
                "name the shard: begin a new lake in another directory",
                details={"shard": shard},
            )
        if others and run.on_gap == "fail":
            raise Gone(
                f"the lake {run.lake.root} follows shard {', '.join(others)}, and the "
                f"broker at {run.address} has shard {shard}: it was made anew or restored. Run on "
                "another directory; or with on_gap='skip', which adds this feed to the same tables",
                details={"shard": shard},
            )
        remember_shard(run.lake, shard)
        return first
    try:
        transport.shard(number).call("feed", {"shard": shard, "after": after})
    except (Gone, NotFound) as error:
        if run.on_gap == "skip" and isinstance(error, Gone):
            return first
        raise Gone(
            f"the lake {run.lake.root} is at position {after}, and the feed of the "
            f"broker at {run.address} has {first} to {bounds['last']}"
            ": what lies between was dropped (feed_age, feed_size). Begin a new lake; or run with "
            "on_gap='skip', which goes on where the feed begins, and the audit will show the gap. "
            "Give the broker a longer feed_age if this can happen again",
            details={"position": after, "first": first},
        ) from error
    return after


def shards(lake: Lake) -> list[str]:
    """The shards whose feeds are in the lake."""
    place = lake.root / "shards"
    return place.read_text().split() if place.exists() else []


def remember_shard(lake: Lake, shard: str) -> None:
    """Before the first row of it comes."""
    known = shards(lake)
    if shard not in known:
        lake.root.mkdir(parents=True, exist_ok=True)
        replace_text(lake.root / "shards", "\n".join([*known, shard]) + "\n")


def copy(run: StageRun, feeds: list[FeedCopy]) -> int:
    """One step: the rows of each feed from `after` to `target`, and the positions behind them."""
    table, payload = run.lake.bronze, bool(run.option("payload", False))
    spark = run.spark
    splits = max(1, int(run.option("tasks", 0)) or parallelism(spark))
    tickets = []
    for feed in feeds:
        fields = {
            "call": "changes",
            "shard": feed.feed,
            "after": feed.after,
            "through": feed.target,
            "payload": payload,
            "splits": even_share(splits, feeds),
        }
        tickets += [
            FeedTicket(feed.number, feed.feed, {n: ticket[n] for n in ticket if n != "version"})
            for ticket in run.client.transport.shard(feed.number).plan(fields)
        ]
    with table.staging() as staged:
        work = Copy(tickets, run.address, run.token, payload, str(staged))
        count = len(tickets)
        written = spark.range(0, count, 1, count).mapInArrow(work, "path string").collect()
        # Only what tasks reported: one that failed half-way may have left something.
        files = table.adopt(staged, [staged / row.path for row in written])
        positions = [(transaction(feed.feed), feed.target) for feed in feeds]
        table.replace(files, [], positions, schema(payload))
    return sum(file.rows for file in files)


def schema(payload: bool) -> pa.Schema:
    """The table's columns."""
    columns = View("changes", None, payload).schema
    return columns.append(pa.field("day", pa.date32())).append(pa.field("part", pa.string()))


@dataclass(frozen=True)
class FeedTicket:
    """A part of a shard's feed."""

    number: int
    feed: str
    ticket: dict[str, Any]


@dataclass(frozen=True)
class Copy:
    """What a task does: reads its ticket and writes files. Travels to executors."""

    tickets: list[FeedTicket]
    address: str
    token: str | None
    payload: bool
    staged: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Of `mapInArrow`: rows are numbers of tickets."""
        with as_spark_errors():
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    paths = pa.array(self._copy(number), pa.string())
                    yield pa.RecordBatch.from_pydict({"path": paths})

    def _copy(self, number: int) -> list[str]:
        mine = self.tickets[number]
        batches = rows_of(
            lambda: client_of(self.address, self.token), mine.ticket, shard=mine.number
        )
        view = View("changes", None, self.payload)
        with Writers(Path(self.staged), f"{number:05}-{attempt_id()}") as writers:
            for batch in batches:
                writers.add(view.made_of(batch, shard=mine.feed))
        return writers.paths


class Writers:
    """Sorts rows into files by day and part. For one thread."""

    def __init__(self, root: Path, name: str) -> None:
        self._root, self._name = root, name
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._day: Any = None
        self._open: dict[str, pq.ParquetWriter] = {}
        # Below the root, of all files.
        self.paths: list[str] = []

    def __enter__(self) -> Writers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._flush()
        self._close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes rows; they are in order of time."""
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= _CHUNK_ROWS or self._waiting_bytes >= _CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting_rows:
            table = pa.Table.from_batches(self._waiting).combine_chunks()
            for day, rows in _by_day(table):
                if day != self._day:
                    self._close()
                    self._day = day
                self._write(rows)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def _write(self, rows: pa.Table) -> None:
        left = rows
        for topic, part in self._own(rows.column("topic")):
            if len(left) == 0:
                break
            mine = pc.equal(left.column("topic"), topic)
            if pc.all(mine, skip_nulls=False).as_py():
                self._writer(part, left.schema).write_table(left)
                return
            mine = pc.fill_null(mine, False)
            self._writer(part, left.schema).write_table(left.filter(mine))
            left = left.filter(pc.invert(mine))
        if len(left):
            self._writer(SMALL, left.schema).write_table(left)

    def _own(self, topics: pa.ChunkedArray) -> list[tuple[str, str]]:
        """Topics that have files of their own, and the names of those."""
        own: list[tuple[str, str]] = []
        for row in sorted(pc.value_counts(topics).to_pylist(), key=lambda row: -row["counts"]):
            topic = row["values"]
            if topic is None:
                continue
            part = part_of(topic)
            room = len(self._open) + len(own) < _OWN_TOPICS
            if part in self._open or (row["counts"] >= _OWN_ROWS and room):
                own.append((topic, part))
        return own

    def _writer(self, part: str, columns: pa.Schema) -> pq.ParquetWriter:
        writer = self._open.get(part)
        if writer is None:
            folder = folder_of({"day": str(self._day), "part": part})
            (self._root / folder).mkdir(parents=True, exist_ok=True)
            path = f"{folder}{self._name}-{len(self.paths):04}.parquet"
            self.paths.append(path)
            writer = self._open[part] = pq.ParquetWriter(
                self._root / path, columns, compression="zstd", compression_level=1
            )
        return writer

    def _close(self) -> None:
        for writer in self._open.values():
            writer.close()
        self._open = {}


def _by_day(table: pa.Table) -> Iterator[tuple[Any, pa.Table]]:
    """Rows are in order of time: each day is a slice."""
    days = table.column("at").cast(pa.date32())
    first, last = days[0].as_py(), days[-1].as_py()
    if first == last:
        yield first, table
        return
    for day in pc.unique(days).to_pylist():
        yield day, table.filter(pc.equal(days, day))


def part_of(topic: str) -> str:
    """The name of a topic's files: the topic's, where it can be part of a path."""
    if _SAFE.fullmatch(topic) and len(topic) <= 100:
        return topic
    digest = hashlib.blake2b(topic.encode(), digest_size=6).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9._-]', '-', topic)[:100]}~{digest}"
