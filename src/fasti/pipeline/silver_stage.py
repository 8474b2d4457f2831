"""Silver as a table: from bronze, step by step, at a cost that grows with what is new.

The table `messages` has one row per message, at every version, for every reader of Delta tables.
Level 0 are messages whose life is over: written once, by the day on which they ended. Level 1 are
open ones, in files that are written anew when something happens to one of their messages.

A step folds what is new. Messages that it knows from their first transition are rows; parts of
others are put together with the row that an open file has, see `silver_open`. Where open messages are
few, all of them are folded with what is new, in one go.

A step is one commit: files that were read go, the new ones come, and the positions in bronze move.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from fasti.pipeline import silver
from fasti.pipeline.bronze import shards, transaction
from fasti.pipeline.files import DataFile, folder_of
from fasti.pipeline.shared import attempt_id, parallelism
from fasti.pipeline.silver_open import (
    FILE_ROWS,
    FOLD_ROWS,
    OPEN_FOLDER,
    PARTIAL,
    SPLIT_ROW,
    Split,
    divide,
    is_open,
    may_go_on,
)
from fasti.pipeline.topics import Deleted, LakeTopics, TopicEvents

if TYPE_CHECKING:
    from fasti.pipeline.runner import StageRun
    from fasti.pipeline.tables import Table

# A step is at most about so many transitions.
STEP_ROWS = 4_000_000
# More tasks than one are worth it for so many rows each.
_TASK_ROWS = 20_000
# Names of so many messages are sent to all executors.
_NAMES_SENT = 200_000
SCHEMA = silver.PARTS.append(pa.field("level", pa.int32())).append(pa.field("day", pa.date32()))

_READ = [name for name in silver.TRANSITIONS if name not in ("topic_no", "topic_since")]


def update(run: StageRun) -> int:
    """Brings silver up to bronze. Returns how many transitions were new."""
    done = 0
    steps = Steps(run)
    while not run.stopping():
        rows = steps.step()
        if rows is None:
            break
        done += rows
        run.progress(done, max(steps.waiting, done))
    return done


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of a shard's feed behind one position, up to another."""

    shard: str
    after: int
    through: int

    def may_be_in(self, file: DataFile) -> bool:
        """Whether a file of bronze can have some of them."""
        low, high = file.low.get("shard"), file.high.get("shard")
        if low is not None and high is not None and not low <= self.shard <= high:
            return False
        return file.may_have("position", self.after, self.through)

    def column(self) -> Column:
        """Whether a row is one of them."""
        position = F.col("position")
        within = (position > self.after) & (position <= self.through)
        return within & (F.col("shard") == self.shard)


class Steps:
    """The steps of a run: each takes rows of all shards in, as one feed would be."""

    def __init__(self, run: StageRun) -> None:
        self._run, self._lake = run, run.lake
        bronze = run.lake.bronze
        self._targets = {
            shard: bronze.position(transaction(shard)) or 0 for shard in shards(run.lake)
        }
        left = self._left()
        self._files = [
            file for file in bronze.files() if any(span.may_be_in(file) for span in left)
        ]
        self.waiting = sum(file.rows for file in self._files)

    def _left(self) -> list[Span]:
        """Of each shard that silver is behind in, everything."""
        spans = []
        for shard, target in self._targets.items():
            position = self._lake.messages.position(f"bronze:{shard}")
            after = -1 if position is None else position
            if after < target:
                spans.append(Span(shard, after, target))
        return spans

    def step(self) -> int | None:
        """Takes the next rows of bronze in. None: there are none."""
        left = self._left()
        most = max(1, int(self._run.option("step_rows", STEP_ROWS)) // max(1, len(left)))
        # A shard that has no rows stays where it is.
        spans = [
            self._next(span, most)
            for span in left
            if any(span.may_be_in(file) for file in self._files)
        ]
        files = [file for file in self._files if any(span.may_be_in(file) for span in spans)]
        if not files:
            return None
        new = SilverStep(self._run, spans, files)
        new.commit([(f"bronze:{span.shard}", span.through) for span in spans])
        return new.rows

    def _next(self, span: Span, most: int) -> Span:
        """As much as a step takes: behind enough files, in the order in which they end."""
        rows = 0
        for file in sorted(self._files, key=lambda file: file.high["position"]):
            if span.may_be_in(file) and file.high["position"] > span.after:
                rows += file.rows
                if rows >= most:
                    end = min(int(file.high["position"]), span.through)
                    return replace(span, through=end)
        return span


class SilverStep:
    """One step: the rows of bronze between two positions of each shard."""

    def __init__(self, run: StageRun, spans: Sequence[Span], files: list[DataFile]) -> None:
        self._run, self._spark, self._lake = run, run.spark, run.lake
        self._spans, self._files = spans, files
        self.rows = sum(file.rows for file in files)
        self._topics = LakeTopics(self._lake.topics)
        self._names: dict[str, set[str]] = {}
        self._deleted: list[Deleted] = []
        for span in spans:
            place = (span.shard, span.after, span.through)
            mine = [file for file in files if span.may_be_in(file)]
            events = TopicEvents.by(self._lake.bronze, mine, *place)
            self._names[span.shard] = events.names
            self._deleted += self._topics.learn(span.shard, events, lambda: run.client)
        self._open = [file for file in self._lake.messages.files() if is_open(file)]

    def commit(self, txn: list[tuple[str, int]]) -> None:
        """All of it or nothing."""
        self._topics.save()
        table = self._lake.messages
        near, far = divide(self._open, self.rows)
        rows = self._new_rows()
        if near:
            rows = rows.unionByName(_parts(table, self._spark, near), allowMissingColumns=True)
        with table.staging() as staged:
            fold = Folding(self._spark, table, staged)
            fold.run(rows, self.rows + sum(file.rows for file in near), whole=not far)
            gone = fold.go_on(far)
            files = table.adopt(staged, [staged / path for path in fold.written])
            table.replace(files, [*near, *gone], txn, SCHEMA)

    def _new_rows(self) -> DataFrame:
        rows = self._transitions()
        if self._deleted:
            rows = rows.unionByName(self._swept(rows), allowMissingColumns=True)
        return rows

    def _transitions(self) -> DataFrame:
        """New rows of messages, with the number of their topic."""
        spans = [
            span
            for shard, names in self._names.items()
            for span in self._topics.spans(shard, names)
        ]
        topics = self._spark.createDataFrame(
            spans,
            "shard string, topic string, topic_no long, topic_since long, _begin long, _end long",
        )
        position = F.col("position")
        rows = (
            self._lake.bronze.read(self._spark, self._files)
            .where(F.col("id").isNotNull() & F.col("offset").isNull())
            .where(F.col("op").isin(*silver.OPS))
            .where(reduce(or_, (span.column() for span in self._spans)))
            .select(*_READ)
        )
        rows = rows.join(F.broadcast(topics), ["shard", "topic"])
        return rows.where((position >= F.col("_begin")) & (position < F.col("_end"))).drop(
            "_begin", "_end"
        )

    def _swept(self, rows: DataFrame) -> DataFrame:
        """A row for each message of a topic that was deleted."""
        numbers = [topic.topic_no for topic in self._deleted]
        ends = self._spark.createDataFrame(
            [(topic.topic_no, topic.position, topic.row, topic.at) for topic in self._deleted],
            "topic_no long, position long, row int, at timestamp",
        )
        names = rows.where(F.col("topic_no").isin(numbers)).select(*_NAMES)
        if self._open:
            opened = _parts(self._lake.messages, self._spark, self._open)
            names = names.unionByName(opened.where(F.col("topic_no").isin(numbers)).select(*_NAMES))
        ended = names.distinct().join(F.broadcast(ends), "topic_no")
        return ended.withColumn("op", F.lit("topic_deleted"))


_NAMES = ["shard", "topic", "topic_no", "topic_since", "partition", "id"]


class Folding:
    """The jobs of one step, and the files that they have written below its staging directory."""

    def __init__(self, spark: SparkSession, table: Table, staged: Path) -> None:
        self._spark, self._table, self._staged = spark, table, staged
        # Of the table to be, and those with parts whose message may have a row already.
        self.written: list[str] = []
        self._partial: list[tuple[str, int]] = []

    def run(self, rows: DataFrame, count: int, whole: bool) -> None:
        """Folds about so many rows. Not `whole`: parts without their beginning are left aside."""
        work = Fold(str(self._staged), whole)
        tasks = min(parallelism(self._spark), -(-count // _TASK_ROWS))
        together = rows.repartition(max(tasks, -(-count // FOLD_ROWS), 1), *silver.NAME)
        self._take(together.mapInArrow(work, "path string, rows long").collect())

    def go_on(self, files: Sequence[DataFile]) -> list[DataFile]:
        """Puts what was left aside together with the rows in these files. Returns those that go."""
        parts = [path for path, _ in self._partial]
        if not parts:
            return []
        gone = []
        files = may_go_on(files, [self._staged / path for path in parts])
        if files:
            sources = tuple(file.path for file in files)
            place, staged = str(self._table.path), str(self._staged)
            work = Split(place, staged, sources, tuple(parts))
            # A task's own start costs as much as a file does.
            most = max(parallelism(self._spark), -(-sum(f.rows for f in files) // FOLD_ROWS))
            numbers = self._spark.range(0, len(files), 1, min(len(files), most))
            split = numbers.mapInArrow(work, SPLIT_ROW).collect()
            gone = [files[number] for number in sorted({row.source for row in split})]
            self._take(split)
        below = self._staged.relative_to(self._table.path)
        partial = [DataFile(str(below / path), 0, rows) for path, rows in self._partial]
        rows = _parts(self._table, self._spark, partial)
        self._partial = []
        self.run(rows, sum(file.rows for file in partial), whole=True)
        return gone

    def _take(self, rows: Sequence[Any]) -> None:
        for row in rows:
            if row.path.startswith(f"{PARTIAL}/"):
                self._partial.append((row.path, row.rows))
            else:
                self.written.append(row.path)


@dataclass(frozen=True)
class Fold:
    """What a task does: folds its messages and writes them, by level and day. Travels."""

    staged: str
    # No row of these messages lies elsewhere.
    whole: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Of `mapInArrow`: gives the paths of files and their rows."""
        name = f"fold-{attempt_id()}"
        messages = silver.folded(batches)
        known = messages.column("seen_from_start")
        if self.whole:
            known = pa.repeat(pa.scalar(True), messages.num_rows)
        over = pc.is_in(messages.column("state"), pa.array(silver.FINAL))
        open_rows = messages.filter(pc.and_(known, pc.invert(over))).sort_by("due_last")
        paths = [
            self._write(open_rows.slice(begin, FILE_ROWS), OPEN_FOLDER, f"{name}-{begin}")
            for begin in range(0, open_rows.num_rows, FILE_ROWS)
        ]
        paths.append(self._write(messages.filter(pc.invert(known)), f"{PARTIAL}/", name))
        ended = messages.filter(pc.and_(known, over))
        days = ended.column("finished_at").cast(pa.date32())
        for day in pc.unique(days).to_pylist():
            folder = folder_of({"level": "0", "day": str(day)})
            paths.append(self._write(ended.filter(pc.equal(days, day)), folder, name))
        written = [(path, rows) for path, rows in paths if rows]
        columns = {"path": [path for path, _ in written], "rows": [rows for _, rows in written]}
        kinds = pa.schema([("path", pa.string()), ("rows", pa.int64())])
        yield pa.RecordBatch.from_pydict(columns, kinds)

    def _write(self, rows: pa.Table, folder: str, name: str) -> tuple[str, int]:
        """Returns where, below the staging directory, and how many; nothing if there are no rows."""
        path = f"{folder}{name}.parquet"
        if rows.num_rows:
            (Path(self.staged) / folder).mkdir(parents=True, exist_ok=True)
            pq.write_table(rows, Path(self.staged) / path, compression="zstd", compression_level=1)
        return path, rows.num_rows


def _parts(table: Table, spark: SparkSession, files: Sequence[DataFile]) -> DataFrame:
    return table.read(spark, files).select(*silver.PARTS.names)


def few_or_hashed(names: DataFrame, count: int) -> DataFrame:
    """Distinct names to join a large table with: Spark shall not sort that for their sake.

    Few are sent to all tasks. More would not fit into a driver's memory: each task gets its share
    of them, which does.
    """
    if count <= _NAMES_SENT:
        return F.broadcast(names.distinct())
    shares = max(parallelism(names.sparkSession), -(-count // FOLD_ROWS))
    return names.repartition(shares, *names.columns).distinct().hint("shuffle_hash")
