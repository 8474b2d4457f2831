"""Silver as a table: from bronze, step by step, at a cost that grows with what is new.

The table `messages` has levels. Level 0 are messages whose life is over: one row each, written once,
by the day on which they ended. The others are *open* levels: parts of lives, at most one of a message
in each level, higher levels after lower ones in the feed. A step makes parts of what is new, puts
those that are whole and over into level 0 and the rest into a new level. Nothing old is read for
that, however many messages are open.

Levels are put together when there are too many, or when all of them are small beside what is new. So
there is mostly one open level, with a row per message; a lake with many millions of open messages has
a few more, and a row is written again a few times in its life.

A step is one commit: levels that were read go, the new ones come, and the position in bronze moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fasti.pipeline import silver
from fasti.pipeline.bronze import parallelism, shards, transaction
from fasti.pipeline.files import DataFile, folder_of
from fasti.pipeline.topics import Told, Topics

if TYPE_CHECKING:
    from fasti.pipeline.lake import Lake
    from fasti.pipeline.runner import Run

# A step is at most about so many transitions.
STEP_ROWS = 4_000_000
# Open levels with fewer rows than this together, or than the step has, are put together at once.
SMALL_ROWS = 200_000
LEVELS_MAX = 8
# What a task puts together in memory is at most about so many rows.
FOLD_ROWS = 250_000
# Names of so many messages are sent to all executors.
_NAMES_SENT = 200_000
SCHEMA = silver.PARTS.append(pa.field("level", pa.int32())).append(pa.field("day", pa.date32()))
# When there are too many: a level goes with the newer ones if it isn't much larger than they are.
_MUCH_LARGER = 2

_READ = [name for name in silver.TRANSITIONS if name not in ("topic_no", "topic_since")]


def silver_messages(run: Run) -> int:
    """Brings silver up to bronze. Returns how many transitions were new."""
    total = done = 0
    plans = {shard: Steps(run, shard) for shard in shards(run.lake)}
    total = sum(each.waiting for each in plans.values())
    for steps in plans.values():
        while not run.stopping():
            rows = steps.step()
            if rows is None:
                break
            done += rows
            run.progress(done, max(total, done))
    return done


silver_messages.__name__ = "silver"


class Steps:
    """The steps of one shard."""

    def __init__(self, run: Run, shard: str) -> None:
        self._run, self._shard = run, shard
        self._lake, self._spark = run.lake, run.spark
        self._name = f"bronze:{shard}"
        bronze = run.lake.bronze
        self._target = bronze.position(transaction(shard)) or 0
        self._files = [each for each in bronze.files() if self._new(each)]
        self.waiting = sum(each.rows for each in self._files)

    @property
    def after(self) -> int:
        """Where silver is."""
        found = self._lake.messages.position(self._name)
        return -1 if found is None else found

    def _new(self, file: DataFile) -> bool:
        return file.may_have("position", above=self.after)

    def step(self) -> int | None:
        """Takes the next rows of bronze in. None: there are none."""
        after = self.after
        if after >= self._target:
            return None
        through = self._end(after)
        files = [each for each in self._files if each.may_have("position", after, through)]
        if not files:
            return None
        new = Step(self._run, self._shard, after, through, files)
        new.commit((self._name, through))
        return new.rows

    def _end(self, after: int) -> int:
        """Where the step ends: behind enough files, in the order in which they end."""
        rows, most = 0, int(self._run.option("step_rows", STEP_ROWS))
        for each in sorted(self._files, key=lambda each: each.high["position"]):
            if each.high["position"] > after:
                rows += each.rows
                if rows >= most:
                    return min(int(each.high["position"]), self._target)
        return self._target


class Step:
    """One step: the rows of bronze between two positions."""

    def __init__(
        self, run: Run, shard: str, after: int, through: int, files: list[DataFile]
    ) -> None:
        self._run, self._spark, self._lake = run, run.spark, run.lake
        self._shard, self._after, self._through, self._files = shard, after, through, files
        self.rows = sum(each.rows for each in files)
        self._told = Told.by(self._lake.bronze, files, shard, after, through)
        self._topics = Topics(self._lake.topics)
        self._deleted = self._topics.learn(shard, self._told, lambda: run.client)
        self._levels = open_levels(self._lake.messages.files())

    def commit(self, txn: tuple[str, int]) -> None:
        """Does it, whole or not at all."""
        self._topics.save()
        table = self._lake.messages
        whole = bool(self._deleted)
        taken = list(self._levels) if whole else to_merge(self._sizes(), self.rows)
        old = [file for level in taken for file in self._levels[level]]
        rows = self._new_rows()
        if old:
            rows = rows.unionByName(_opened(table, self._spark, old), allowMissingColumns=True)
        count = self.rows + sum(each.rows for each in old)
        everything = len(taken) == len(self._levels)
        level = max(self._levels, default=0) + 1
        with table.staging() as staged:
            work = Fold(str(staged), level, everything)
            partitions = max(parallelism(self._spark), -(-count // FOLD_ROWS))
            together = rows.repartition(partitions, *silver.NAME)
            written = together.mapInArrow(work, "path string").collect()
            files = table.adopt(staged, [staged / each.path for each in written])
            table.replace(files, old, txn, SCHEMA)

    def _sizes(self) -> dict[int, int]:
        return {level: sum(f.rows for f in files) for level, files in self._levels.items()}

    def _new_rows(self) -> DataFrame:
        rows = self._transitions()
        if self._deleted:
            rows = rows.unionByName(self._swept(rows), allowMissingColumns=True)
        return rows

    def _transitions(self) -> DataFrame:
        """New rows of messages, with the number of their topic."""
        spans = self._topics.spans(self._shard, self._told.names)
        topics = self._spark.createDataFrame(
            spans,
            "shard string, topic string, topic_no long, topic_since long, _begin long, _end long",
        )
        position = F.col("position")
        rows = (
            self._lake.bronze.read(self._spark, self._files)
            .where(F.col("id").isNotNull() & F.col("offset").isNull())
            .where(F.col("op").isin(*silver.OPS))
            .where((position > self._after) & (position <= self._through))
            .where(F.col("shard") == self._shard)
            .select(*_READ)
        )
        rows = rows.join(F.broadcast(topics), ["shard", "topic"])
        return rows.where((position >= F.col("_begin")) & (position < F.col("_end"))).drop(
            "_begin", "_end"
        )

    def _swept(self, rows: DataFrame) -> DataFrame:
        """A row for each message of a topic that was deleted."""
        numbers = [each.topic_no for each in self._deleted]
        ends = self._spark.createDataFrame(
            [(each.topic_no, each.position, each.row, each.at) for each in self._deleted],
            "topic_no long, position long, row int, at timestamp",
        )
        found = rows.where(F.col("topic_no").isin(numbers)).select(*_NAMES)
        opened = self._open_rows()
        if opened is not None:
            found = found.unionByName(opened.where(F.col("topic_no").isin(numbers)).select(*_NAMES))
        ended = found.distinct().join(F.broadcast(ends), "topic_no")
        return ended.withColumn("op", F.lit("topic_deleted"))

    def _open_rows(self) -> DataFrame | None:
        files = [file for level in self._levels.values() for file in level]
        return _opened(self._lake.messages, self._spark, files) if files else None


_NAMES = ["shard", "topic", "topic_no", "topic_since", "partition", "id"]


def open_levels(files: Sequence[DataFile]) -> dict[int, list[DataFile]]:
    """The files of each open level, older levels first."""
    levels: dict[int, list[DataFile]] = {}
    for each in files:
        level = int(each.partition["level"] or 0)
        if level:
            levels.setdefault(level, []).append(each)
    return dict(sorted(levels.items()))


def to_merge(sizes: dict[int, int], new: int) -> list[int]:
    """The levels that are put together with a step of so many rows: the newest ones, or none."""
    if sum(sizes.values()) <= max(SMALL_ROWS, new):
        return list(sizes)
    if len(sizes) < LEVELS_MAX:
        return []
    taken: list[int] = []
    rows = new
    for level in sorted(sizes, reverse=True):
        if len(taken) >= 2 and sizes[level] > _MUCH_LARGER * rows:
            break
        taken.append(level)
        rows += sizes[level]
    return taken


@dataclass(frozen=True)
class Fold:
    """What tasks do: each folds its messages and writes them, by level and day. Travels."""

    staged: str
    level: int
    # No part of a message lies elsewhere.
    everything: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Of `mapInArrow`: gives the paths of files."""
        from pyspark import TaskContext

        context = TaskContext.get()
        name = "0" if context is None else f"{context.partitionId():05}-{context.taskAttemptId()}"
        messages = silver.folded(batches)
        over = pc.is_in(messages.column("state"), pa.array(silver.FINAL))
        if not self.everything:
            over = pc.and_(over, messages.column("seen_from_start"))
        over = pc.fill_null(over, False)
        paths = [self._write(messages.filter(pc.invert(over)), self.level, None, name)]
        ended = messages.filter(over)
        days = ended.column("finished_at").cast(pa.date32())
        for day in pc.unique(days).to_pylist():
            paths.append(self._write(ended.filter(pc.equal(days, day)), 0, str(day), name))
        found = pa.array([each for each in paths if each], pa.string())
        yield pa.RecordBatch.from_pydict({"path": found})

    def _write(self, rows: pa.Table, level: int, day: str | None, name: str) -> str:
        """Returns where, below the staging directory; nothing if there are no rows."""
        if not rows.num_rows:
            return ""
        folder = folder_of({"level": str(level), "day": day})
        (Path(self.staged) / folder).mkdir(parents=True, exist_ok=True)
        path = f"{folder}{name}.parquet"
        pq.write_table(rows, Path(self.staged) / path, compression="zstd", compression_level=1)
        return path


def _opened(table: Any, spark: SparkSession, files: Sequence[DataFile]) -> DataFrame:
    rows: DataFrame = table.read(spark, files)
    return rows.select(*silver.PARTS.names)


def messages_now(lake: Lake, spark: SparkSession) -> DataFrame:
    """One row per message, finished or not, as of the last step."""
    table = lake.messages
    files = table.files()
    levels = open_levels(files)
    over = [each for each in files if int(each.partition["level"] or 0) == 0]
    settled = table.read(spark, over).select(*silver.COLUMNS)
    if not levels:
        return settled
    return settled.unionByName(_together(lake, spark, levels).select(*silver.COLUMNS))


def few_or_hashed(names: DataFrame, count: int) -> DataFrame:
    """Distinct names to join a large table with: Spark shall not sort that for their sake.

    Few are sent to all tasks. More, and a driver's memory would not do for it: each task has its
    share of them, which fits.
    """
    if count <= _NAMES_SENT:
        return F.broadcast(names.distinct())
    shares = max(parallelism(names.sparkSession), -(-count // FOLD_ROWS))
    return names.repartition(shares, *names.columns).distinct().hint("shuffle_hash")


def parts_beside_the_largest(lake: Lake) -> int:
    """How many parts of messages a reader has to put together with others."""
    rows = [sum(f.rows for f in files) for files in open_levels(lake.messages.files()).values()]
    return sum(rows) - max(rows, default=0)


def _together(lake: Lake, spark: SparkSession, levels: dict[int, list[DataFile]]) -> DataFrame:
    """Open messages: those of the largest level that no other level knows need no merging."""
    table = lake.messages
    if len(levels) == 1:
        return _opened(table, spark, next(iter(levels.values())))
    largest = max(levels, key=lambda level: sum(each.rows for each in levels[level]))
    others = [file for level, files in levels.items() if level != largest for file in files]
    parts, base = _opened(table, spark, others), _opened(table, spark, levels[largest])
    count = sum(each.rows for each in others)
    names = few_or_hashed(parts.select(*silver.NAME), count)
    touched = base.join(names, silver.NAME, "left_semi")
    untouched = base.join(names, silver.NAME, "left_anti")
    together = silver.fold(
        parts.unionByName(touched), max(parallelism(spark), -(-2 * count // FOLD_ROWS))
    )
    return untouched.unionByName(together)
