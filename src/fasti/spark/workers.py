"""Workers in Spark: messages leased in batches, each handed to a function as a DataFrame.

    def handle(emails: DataFrame, batch: int) -> None:
        emails.join(users, "key").write.mode("append").save(...)

    worker = fasti.spark.consume(spark, "emails", handle)
    worker.awaitTermination()

In the habit of `foreachBatch`, but of a queue: what the function returned from is acked, what it
raised on is given back, and every message goes to one worker only, also when several drivers run the
same. The driver leases, keeps the leases alive while the function runs, and acks; the rows reach the
executors as Arrow.

A worker is a thread beside the caller's. Any thread may stop it or wait for it.
"""

from __future__ import annotations

import atexit
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Literal

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import fasti
from fasti.client.batch import Batch
from fasti.client.client import Client
from fasti.client.consumer import Consumer
from fasti.client.durations import Duration, duration_us, seconds
from fasti.errors import InvalidArgument, RowsFailed, TimedOut
from fasti.spark.leased import Verdicts, bounded, rows_of, verdicts_of
from fasti.spark.patience import patiently

logger = logging.getLogger("fasti.spark")

Handle = Callable[[DataFrame, int], Any]
OnError = Literal["release", "nack"]

# With `once`: when nothing came for so long, the broker is asked whether anything is left; if it says
# that there is, and yet nothing comes for so many seconds, it is not for this worker.
_QUIET = "500ms"
_LEFT_S = 60.0
_STOP_S, _AGAIN_S = 30.0, 0.2
_FLUSH = "1s"
_RECENT = 100


def consume(
    spark: SparkSession,
    topic: str,
    handle_batch: Handle,
    *,
    address: str | None = None,
    token: str | None = None,
    tls_ca: str | None = None,
    tls_client_cert: str | None = None,
    name: str | None = None,
    group: str | None = None,
    rows: int = 10_000,
    wait: Duration = "100ms",
    once: bool = False,
    timeout: Duration | None = None,
    on_error: OnError = "release",
    retry_delay: Duration = "1s",
    max_failures: int | None = 4,
    time_limit: Duration | None = None,
) -> Worker:
    """Leases messages in batches of up to `rows` and calls `handle_batch(df, batch)` with each.

    `df` has the columns id, partition, due, version, attempts, priority, created, key, headers,
    content_type, subject, payload, and of a log's `group` also offset; `batch` counts from 0. A batch
    is handed over when it is full, or `wait` after its first message came due. When the function
    returns, its messages are acked; those whose ids it returns, in a DataFrame with the columns `id`
    and, if you like, `reason`, are nacked instead. When it raises, all of them are given back for
    `retry_delay` (`on_error="nack"`: they failed, and wait as the topic's `retry` says), and after
    `max_failures` times in a row the worker ends with that error.

    Returns at once; `worker.stop()` ends it, `worker.awaitTermination()` waits and raises what ended
    it. With `timeout` it ends when nothing came for so long. With `once=True` it works off what is
    due, and returns then. `time_limit` is how long leases are renewed at most. `name` is the
    consumer's: see `client.consumer`. `address`, `token`, `tls_ca` and `tls_client_cert` are those
    of `fasti.connect`, as this process sees the broker.

    At least once: after a crash between your effects and the ack a message comes again, with
    `attempts` + 1, and in another batch.
    """
    if on_error not in ("release", "nack"):
        raise InvalidArgument(
            f"on_error must be release or nack, not {on_error!r}", field="on_error"
        )
    if max_failures is not None and max_failures < 1:
        raise InvalidArgument("max_failures must be at least 1", field="max_failures", limit=1)
    client = fasti.connect(address, token=token, tls_ca=tls_ca, tls_client_cert=tls_client_cert)
    to_the_end = once and timeout is None
    try:
        consumer = client.consumer(
            topic,
            name=name,
            group=group,
            timeout=_QUIET if to_the_end else timeout,
            time_limit=time_limit,
        )
        # What is wrong with the topic, the group or the counts is told here, not in the thread.
        batches = consumer.batches(rows, wait=wait)
    except BaseException:
        client.close()
        raise
    failing = _Failing(on_error, duration_us(retry_delay, "retry_delay"), max_failures)
    worker = Worker(spark, client, consumer, handle_batch, failing)
    if to_the_end:
        batches = worker.all_due(lambda: consumer.batches(rows, wait=wait))
    worker.start(batches)
    if once:
        worker.awaitTermination()
    return worker


class _Failing:
    """What becomes of batches that the function raised on."""

    def __init__(self, how: OnError, delay_us: int, most: int | None) -> None:
        self._how, self._delay_s, self._most = how, delay_us / 1_000_000, most
        self._in_a_row = 0

    def well(self) -> None:
        self._in_a_row = 0

    def failed(self, batch: Batch, error: Exception) -> bool:
        """Gives a batch back; whether to go on."""
        self._in_a_row += 1
        if self._how == "nack":
            batch.nack(reason=bounded(f"{type(error).__name__}: {error}", batch))
        else:
            batch.release(delay=self._delay_s)
        return self._most is None or self._in_a_row < self._most


class Worker:
    """A worker that runs, or ran: made by `consume`, in the habit of a `StreamingQuery`."""

    def __init__(
        self,
        spark: SparkSession,
        client: Client,
        consumer: Consumer,
        handle: Handle,
        failing: _Failing,
    ) -> None:
        self.topic, self.name, self.group = consumer.topic, consumer.name, consumer.group
        self._spark, self._client, self._consumer = spark, client, consumer
        self._handle, self._failing = handle, failing
        self._tag = f"fasti-worker-{secrets.token_hex(4)}"
        self._number = 0
        self._error: BaseException | None = None
        self._stopping = False
        self._ended = threading.Event()
        self._recent: deque[dict[str, Any]] = deque(maxlen=_RECENT)
        self._thread: threading.Thread | None = None

    def start(self, batches: Any) -> None:
        """Once, by `consume`."""
        self._thread = threading.Thread(
            target=self._run, args=(batches,), name=f"fasti-worker-{self.topic}", daemon=True
        )
        atexit.register(self.stop)
        self._thread.start()

    # Any thread

    @property
    def isActive(self) -> bool:
        """Whether it goes on."""
        return not self._ended.is_set()

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        """The last hundred batches: batchId, numInputRows, numFailedRows, durationMs, error."""
        return list(self._recent)

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        """The last batch; None before the first."""
        return self._recent[-1] if self._recent else None

    def exception(self) -> BaseException | None:
        """What ended it, if that was an error."""
        return self._error if self._ended.is_set() else None

    def awaitTermination(self, timeout: Duration | None = None) -> bool:
        """Waits until it has ended, at most `timeout`; whether it has. Raises what ended it.

        When Ctrl-C ends the waiting, the worker is stopped too.
        """
        try:
            ended = self._ended.wait(seconds(timeout))
        except KeyboardInterrupt:
            self.stop()
            raise
        if ended and self._error is not None:
            raise self._error
        return ended

    def stop(self, timeout: Duration | None = None) -> None:
        """Takes no more, waits for the batch in hand, and gives back what was not started.

        After `timeout` (default 30 s) the jobs of that batch are cancelled, which the function sees
        as an error: its messages are given back.
        """
        atexit.unregister(self.stop)
        self._stopping = True
        self._consumer.stop()
        if self._thread is None or self._thread is threading.current_thread():
            return
        patience = seconds(timeout)
        if not self._ended.wait(_STOP_S if patience is None else patience):
            self._cancel()

    def _cancel(self) -> None:
        """Again and again: the function may just be about to begin its next job."""
        until = time.monotonic() + _STOP_S
        while time.monotonic() < until and not self._ended.is_set():
            context = _context(self._spark)
            if context is None:
                self._spark.interruptTag(self._tag)
            else:
                context.cancelJobsWithTag(self._tag)
            self._ended.wait(_AGAIN_S)

    def __repr__(self) -> str:
        return f"<Worker {self.name!r} of {self.topic!r}, {'active' if self.isActive else 'ended'}>"

    # The worker's thread

    def _run(self, batches: Any) -> None:
        try:
            self._mark_jobs()
            with self._client, self._consumer:
                for batch in batches:
                    self._one(batch)
        except BaseException as error:
            self._error = error
            logger.error("the worker of %r ended: %s", self.topic, error)
        finally:
            self._ended.set()
            atexit.unregister(self.stop)

    def all_due(self, batches: Callable[[], Iterator[Batch]]) -> Iterator[Batch]:
        """Batches until nothing is due any more.

        That nothing came for a while doesn't tell: a busy broker, or one that is just being started
        again, is quiet too. So it is asked; and what was on its way meanwhile is waited for.
        """
        none_left, until = False, time.monotonic() + _LEFT_S
        while True:
            for batch in batches():
                yield batch
                none_left, until = False, time.monotonic() + _LEFT_S
            if self._stopping or none_left:
                return
            none_left = not patiently(self._left)
            if not none_left and time.monotonic() > until:
                logger.warning("messages of %r are due, and none came in a minute", self.topic)
                return

    def _left(self) -> int:
        return 0 if self._stopping else open_count(self._client, self.topic, self.group)

    def _mark_jobs(self) -> None:
        """Jobs of this thread can be cancelled by the tag."""
        context = _context(self._spark)
        if context is None:
            self._spark.addTag(self._tag)
        else:
            context.addJobTag(self._tag)

    def _one(self, batch: Batch) -> None:
        begin = time.monotonic()
        number, self._number = self._number, self._number + 1
        progress: dict[str, Any] = {
            "batchId": number,
            "timestamp": datetime.now(UTC).isoformat(),
            "numInputRows": len(batch),
            "numFailedRows": 0,
        }
        self._recent.append(progress)
        try:
            verdicts = self._verdicts(batch, number)
        except Exception as error:
            progress |= {"numFailedRows": len(batch), "error": f"{type(error).__name__}: {error}"}
            if not self._failing.failed(batch, error):
                raise
            logger.warning("batch %d of %r failed and comes again: %s", number, self.topic, error)
            self._flush()
        else:
            self._failing.well()
            progress["numFailedRows"] = self._settle(batch, verdicts)
            self._flush()
        finally:
            progress["durationMs"] = round((time.monotonic() - begin) * 1000)

    def _verdicts(self, batch: Batch, number: int) -> Verdicts:
        rows = self._spark.createDataFrame(rows_of(batch, self.group))
        return verdicts_of(self._handle(rows, number), batch)

    def _settle(self, batch: Batch, verdicts: Verdicts) -> int:
        """Nacks what failed and acks the rest; how many failed."""
        failed = 0
        for reason, mask in verdicts:
            failed += int(mask.sum())
            batch.nack(mask, reason)
        batch.ack()
        return failed

    def _flush(self) -> None:
        """Waits until it is durable; for a broker that is away until the worker is stopped."""
        while True:
            try:
                self._consumer.flush(_FLUSH)
                return
            except TimedOut:
                if self._stopping:
                    raise
            except RowsFailed as error:
                # Their leases were over: another consumer has them, or will.
                logger.warning("messages of %r may come again: %s", self.topic, error)
                return


def open_count(client: Client, topic: str, group: str) -> int:
    """How many messages are due and not leased."""
    if not group:
        return int(client.messages(topic).count()["ready"])
    state = client.groups(topic).describe(group)
    return sum(
        partition.lag - partition.leased - partition.again
        for partition in state.partitions
        # Others may have to finish theirs first.
        if not (partition.leased and (state.ordered or partition.window_full))
    )


def _context(spark: SparkSession) -> SparkContext | None:
    """None for a remote session, where tags are the session's. Those of a local one mark no jobs."""
    try:
        return spark.sparkContext
    except PySparkException:
        return None
