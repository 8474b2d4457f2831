"""Whether all of Spark's processes see the lake: checked before anything else is done.

The pipeline's files are written by tasks and committed by this process. On one machine that is one file
system; on a cluster the lake's directory must be one that all machines have under the same path. What
would go wrong late and half-way is tried here with a file of a few bytes: this process writes it, tasks
must see it, and this process must see, and be able to move, what tasks write beside it. A Connect server
must see it too, because it plans the reads.

Called by the runner, with the lake's lock.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from fasti.errors import InvalidArgument

_FOLDER = ".shared"
_ANSWER = "number int, host string, content string, installed string, trouble string"
# More than there are cores anywhere.
_SPLIT_ROWS = 100_000
_parallelism: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
# Of a package that lies on the path and was never installed.
_NO_VERSION = "?"
_WHAT_TO_DO = (
    "The lake must be a directory that this process and all of Spark's see under the same path, such "
    "as one on NFS, and may write to; or run with the master local[*]"
)
# Of pipelines of one's own, which run as streams.
NO_CONNECT = (
    "a pipeline of one's own needs a master such as local[*] or spark://host:7077: through Spark "
    "Connect micro-batches are handed out on the server, far from this process and its tables. With "
    "Spark Connect use fasti.pipeline.declarative"
)


def connected(spark: Any) -> bool:
    """Whether the session is one of Spark Connect, whose JVM is elsewhere."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def on_this_machine(spark: Any) -> bool:
    """Whether all of Spark's processes are here for certain."""
    return not connected(spark) and str(spark.sparkContext.master).startswith("local")


def parallelism(spark: Any) -> int:
    """How many tasks run at once, as far as the session says."""
    configured = spark.conf.get("spark.default.parallelism", None)
    if configured:
        return int(configured)
    if not connected(spark):
        return int(spark.sparkContext.defaultParallelism)
    if spark not in _parallelism:
        # Through Spark Connect there is no context to ask; but Spark splits by it what has no size.
        splits = spark.range(_SPLIT_ROWS).selectExpr("spark_partition_id() split").distinct()
        _parallelism[spark] = max(1, splits.count())
    return _parallelism[spark]


def attempt_id() -> int:
    """Of the task that runs here: one that is tried again writes other files."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.taskAttemptId()


def check(root: Path, spark: Any, tasks: int) -> None:
    """Raises `invalid_argument` if a process that is asked doesn't see the lake, or lacks Fasti.

    So many tasks ask; as many as run at once are asked on all executors that are there.
    """
    shutil.rmtree(root / _FOLDER, ignore_errors=True)
    place = root / _FOLDER / uuid.uuid4().hex
    place.mkdir(parents=True)
    try:
        (place / "here").write_text(place.name)
        _ask_tasks(root, place, spark, tasks)
        if connected(spark):
            _ask_server(root, place, spark)
    finally:
        shutil.rmtree(root / _FOLDER, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class TaskAnswer:
    """What a task says: what it read, the version of Fasti there (empty: none), and what went wrong."""

    number: int
    host: str
    content: str
    installed: str
    trouble: str


def _ask_tasks(root: Path, place: Path, spark: Any, tasks: int) -> None:
    answers = spark.range(0, tasks, 1, tasks).mapInArrow(_asking(str(place)), _ANSWER)
    for answer in [TaskAnswer(*row) for row in answers.collect()]:
        complain(root, answer, place)
        try:
            (place / str(answer.number) / "there").rename(place / f"seen-{answer.number}")
        except OSError as error:
            raise InvalidArgument(
                f"this process can't see or move what a task on {answer.host} writes into the lake "
                f"{root} ({error.strerror}). {_WHAT_TO_DO}",
                field="lake",
            ) from error


def complain(root: Path, answer: TaskAnswer, place: Path) -> None:
    """Raises if the task couldn't do its work."""
    mine = version("fasti")
    if answer.installed not in (mine, _NO_VERSION):
        has = f"has Fasti {answer.installed}" if answer.installed else "doesn't have Fasti"
        raise InvalidArgument(
            f"the Python of Spark's executors on {answer.host} {has}, and this process has {mine}: "
            f"pip install 'fasti[spark]=={mine}' there",
            field="master",
        )
    if answer.trouble or answer.content != place.name:
        raise InvalidArgument(
            f"a task on {answer.host} can't work on the lake {root} "
            f"({answer.trouble or 'it sees another directory'}). {_WHAT_TO_DO}",
            field="lake",
        )


def _ask_server(root: Path, place: Path, spark: Any) -> None:
    from pyspark.errors import PySparkException

    try:
        rows = spark.read.text(f"file://{place / 'here'}").collect()
    except PySparkException as error:
        first = str(error).splitlines()[0]
        raise InvalidArgument(
            f"the Connect server doesn't see the lake {root} ({first}). {_WHAT_TO_DO}",
            field="lake",
        ) from error
    assert [row[0] for row in rows] == [place.name]


def _asking(place: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A task. It travels as it stands and imports nothing of ours, which may not be there."""

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import socket
        from importlib.metadata import PackageNotFoundError, version
        from importlib.util import find_spec

        import pyarrow

        try:
            installed = version("fasti")
        except PackageNotFoundError:
            installed = "" if find_spec("fasti") is None else "?"
        for batch in batches:
            for number in batch.column(0).to_pylist():
                content = trouble = ""
                try:
                    with open(os.path.join(place, "here")) as file:
                        content = file.read()
                    # Another attempt may have been here.
                    os.makedirs(os.path.join(place, str(number)), exist_ok=True)
                    with open(os.path.join(place, str(number), "there"), "w") as file:
                        file.write(content)
                except OSError as error:
                    trouble = f"{error.strerror}: {error.filename}"
                values = [[number], [socket.gethostname()], [content], [installed], [trouble]]
                kinds = [pyarrow.int32(), *[pyarrow.string()] * 4]
                columns = [pyarrow.array(v, k) for v, k in zip(values, kinds, strict=True)]
                names = ["number", "host", "content", "installed", "trouble"]
                yield pyarrow.RecordBatch.from_arrays(columns, names)

    return ask
