"""A pipeline for the command line: a lake's directory, a session whose noise goes into a file, and plain
errors.

Spark's JVM talks much on the terminal. Its outputs are tied to `logs/spark.log` in the lake when it is
started; an error is one line that says where the rest can be read. Only this process's main
thread calls.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fasti.client.address import parse_address
from fasti.client.pauses import PASSING
from fasti.errors import FastiError, InvalidArgument, NotFound, Unavailable, error_from_code
from fasti.pipeline.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fasti.pipeline.runner import Report, RunResult, Workflow

Tell = Callable[[str], None]

HINT = "the data pipeline needs Spark: pip install 'fasti[spark]'"
_OURS = {"bronze", "silver", "gold", "tables", "shards", ".lock", "logs", "report.html"}
_PAUSE_S = 5.0
_CODE = re.compile(r"\[FASTI\.(\w+)\] ([^\n]*)")
# Small shuffles are joined to few tasks, since a task costs more than its rows.
_CONF = {"spark.sql.adaptive.coalescePartitions.parallelismFirst": "false"}
_DRIVER = {"spark.driver.memory": "2g"}
# And on one machine hardly any partitions to begin with.
_ONE_MACHINE = {"spark.sql.shuffle.partitions": "4"}
# Where Spark waits for itself: `spark://one:7077,two:7077`, `sc://host:15002/;token=...`.
_PLACE = re.compile(r"(spark|sc)://([^/;]*)")
_PORTS = {"spark": 7077, "sc": 15002}
_ANSWER_S = 10.0


def installed() -> bool:
    """Whether the extra is there."""
    return all(find_spec(name) is not None for name in ("pyspark", "deltalake", "pandas"))


def require(spark: bool = True) -> None:
    """Raises with what to do if the extra isn't installed. Reports need no Spark."""
    if find_spec("deltalake") is None or (spark and not installed()):
        raise FastiError(HINT)


def lake_at(place: Path, new: bool = False) -> Lake:
    """The lake in a directory.

    A directory that is neither empty nor a lake is refused: the broker's data is no place for one.
    """
    if place.exists() and not place.is_dir():
        raise InvalidArgument(
            f"{place} is not a directory: a lake needs one of its own", field="lake"
        )
    there = {entry.name for entry in place.iterdir()} if place.is_dir() else set()
    if there and not there & _OURS:
        what = "a broker's data" if "journal" in there else "other things"
        raise InvalidArgument(f"{place} contains {what}: a lake needs a directory of its own")
    if not there and not new:
        raise NotFound(
            f"there is no lake in {place}: make one with `fasti pipeline once --lake {place}`"
        )
    return Lake(place)


def checked_address(address: str) -> str:
    """An address that Spark's processes can connect to."""
    if address.startswith("embedded:"):
        raise InvalidArgument(
            "Spark can't read from an embedded broker: start one with `fasti serve --data DIR` and give "
            "its address",
            field="address",
        )
    return address


@contextmanager
def session(
    lake: Lake,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    broker: str | None = None,
) -> Iterator[SparkSession]:
    """A session for the time of a command; its noise goes to `logs/spark.log` in the lake.

    `master` is one of Spark's, or the address of a Connect server (`sc://host:15002`); `broker` is one
    that must be there now. Whatever Spark raises inside is raised as one of Fasti's errors, in one
    line.
    """
    require()
    settings = settings_for(master, conf or {})
    find_master(master)
    if broker is not None:
        find_broker(broker)
    log = lake.root / "logs" / "spark.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FastiError(f"can't create {log.parent}: {error.strerror}") from error
    with plainly(None if through_connect(master) else log):
        with _outputs_to(log):
            spark = _started(master, settings)
        try:
            yield spark
        finally:
            # A signal to all processes at once, as service managers send it, has ended it already.
            with _outputs_to(log), suppress(Exception):
                spark.stop()


def _started(master: str, conf: Mapping[str, str]) -> SparkSession:
    import fasti.spark

    spark = fasti.spark.session(master, "fasti pipeline", **conf)
    if not through_connect(master):
        spark.sparkContext.setLogLevel("WARN")
    return spark


def through_connect(master: str) -> bool:
    """Whether this names a Connect server."""
    return master.startswith("sc://")


def settings_for(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Ours and those that were given. A Connect server has settings of its own beside `spark.sql`."""
    if not through_connect(master):
        few = _ONE_MACHINE if master.startswith("local") else {}
        return {**_CONF, **_DRIVER, **few, **conf}
    refused = [name for name in conf if not name.startswith("spark.sql.")]
    if refused:
        raise InvalidArgument(
            f"{', '.join(refused)}: through Spark Connect only settings that begin with spark.sql. "
            "can be given; others are those that the server was started with",
            field="conf",
        )
    return {**_CONF, **conf}


def find_master(master: str) -> None:
    """Raises `unavailable` if nothing listens there: Spark itself would go on trying for minutes."""
    match = _PLACE.match(master)
    if match is None:
        return
    places = []
    for place in match[2].split(","):
        host, _, port = place.rpartition(":") if ":" in place else (place, "", "")
        places.append((host.strip("[]"), int(port) if port.isdecimal() else _PORTS[match[1]]))
    what = "Spark Connect server" if through_connect(master) else "Spark master"
    trouble = _connect_error(places)
    if trouble is not None:
        raise Unavailable(f"there is no {what} at {match[0]}: {trouble}")


def find_broker(address: str) -> None:
    """Raises `unavailable` if nothing listens there, before Spark is started."""
    broker = parse_address(address.partition("#")[0])
    trouble = _connect_error(broker.hosts)
    if trouble is not None:
        raise Unavailable(
            f"there is no broker at {broker}: {trouble}. `fasti serve` starts one; --address or "
            "FASTI_ADDRESS says where it is"
        )


def _connect_error(places: Sequence[tuple[str, int]]) -> OSError | None:
    """Of the last place; None if something listens at one of them."""
    trouble: OSError | None = None
    for place in places:
        try:
            socket.create_connection(place, _ANSWER_S).close()
        except OSError as error:
            trouble = error
        else:
            return None
    return trouble


@contextmanager
def _outputs_to(log: Path) -> Iterator[None]:
    """Processes that are started here write into a file; this one goes on as before."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(number) for number in (1, 2)]
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, before in zip((1, 2), saved, strict=True):
            os.dup2(before, number)
            os.close(before)
        os.close(target)


@contextmanager
def plainly(log: Path | None) -> Iterator[None]:
    """Errors of Spark as errors of ours: the code that stands in its trace, else its first line.

    `log` is where the rest is; none: with the Connect server.
    """
    try:
        yield
    except (FastiError, BrokenPipeError):
        raise
    except Exception as error:
        raise _plain(error, log) from error


def _plain(error: Exception, log: Path | None) -> FastiError:
    if isinstance(error, FastiError):
        return error
    text = str(error)
    more = f"Spark's log: {log or 'that of the Connect server'}"
    code = _CODE.search(text)
    if code is not None:
        return error_from_code(code[1], f"{code[2]} ({more})")
    first = next((line for line in text.splitlines() if line.strip()), "no word")
    return FastiError(f"{type(error).__name__}: {first} ({more})")


def keep_running(
    workflow: Workflow, spark: SparkSession, interval_s: float, progress: Report, tell: Tell
) -> RunResult:
    """Runs until it is asked to stop; while the broker is away it says so and tries again.

    Whatever doesn't pass by itself, such as a feed that no longer reaches back, is raised; unless it
    was asked to stop: then Spark may have been, too, and the next run goes on where this one was.
    """
    from fasti.pipeline.runner import RunResult, run

    stop = threading.Event()
    while True:
        try:
            return run(
                workflow, spark, once=False, interval=interval_s, progress=progress, stop=stop
            )
        except Exception as raised:
            if stop.is_set():
                return RunResult({}, 0, True)
            error = _plain(raised, workflow.lake.root / "logs" / "spark.log")
            if error.code not in PASSING:
                raise
            tell(f"{error.code}: {error.message}; trying again in {_PAUSE_S:g} s")
            stop.wait(_PAUSE_S)
