"""Pipelines of one's own: plain functions from DataFrames to DataFrames, and where they read and write.

    from fasti.pipeline import Pipeline, changes, topic

    pipeline = Pipeline("reminders")

    @pipeline.step(topic("reminders", onConflict="skip"), orders=changes("orders", payload=True))
    def remind(orders: DataFrame) -> DataFrame:
        return orders.where("op = 'produced'").selectExpr("key", "payload", "due - interval 1 hour due")

    pipeline.run(once=True)

The sources are named as the function's parameters. The function stays what it is: a test calls it
with DataFrames of its own. How steps run is written in `user_stage.py`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pyspark.sql import DataFrame, SparkSession

from fasti.client.address import (
    known_address,
    known_tls_ca,
    known_tls_client_cert,
    known_token,
)
from fasti.client.durations import Duration, duration_us
from fasti.errors import InvalidArgument
from fasti.pipeline.ends import FrameOf, Place, Sink, Source, source_of

if TYPE_CHECKING:
    from fasti.pipeline.user_stage import StepRun

Frames = DataFrame | Mapping[str, DataFrame]
Output = Literal["append", "update", "complete"]
F = TypeVar("F", bound=Callable[..., Frames])

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
DIRECTORY = "fasti-pipelines"


@dataclass(frozen=True)
class Step:
    """One function between its sources and its sinks. A single sink has no name."""

    name: str
    function: Callable[..., Frames]
    sources: Mapping[str, Source]
    sinks: Mapping[str, Sink]
    every_s: float
    stateful: bool
    output: Output = "append"

    @property
    def streamed(self) -> list[str]:
        """Names of the sources that are streams."""
        return [name for name, source in self.sources.items() if source.streamed]

    def call(self, frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        """What the function makes of its sources, by the names of the sinks."""
        returned = self.function(**frames)
        made = dict(returned) if isinstance(returned, Mapping) else {"": returned}
        if set(made) != set(self.sinks):
            wanted = ", ".join(map(repr, self.sinks)) if "" not in self.sinks else "one DataFrame"
            raise InvalidArgument(
                f"step {self.name!r} must return {wanted}, and returned "
                f"{', '.join(map(repr, made)) if '' not in made else 'one'}",
                field=self.name,
            )
        for frame in made.values():
            if not isinstance(frame, DataFrame):
                raise InvalidArgument(
                    f"step {self.name!r} must return a DataFrame, not {type(frame).__name__}",
                    field=self.name,
                )
        return made


class Pipeline:
    """Steps that run together, one after the other or side by side.

    `name` says whose state it is: checkpoints lie below `directory`, in a folder of that name, and
    sinks remember it. `address` is the broker's, by default FASTI_ADDRESS or port 7170 of this
    machine; `token`, `tls_ca` and `tls_client_cert` (files that all of Spark's processes have) by
    default FASTI_TOKEN, FASTI_TLS_CA and FASTI_TLS_CLIENT_CERT.
    """

    def __init__(
        self,
        name: str,
        *,
        address: str | None = None,
        token: str | None = None,
        tls_ca: str | None = None,
        tls_client_cert: str | None = None,
        directory: str | Path | None = None,
    ) -> None:
        self.name = _checked(name, "name")
        self.address, self.token = address, token
        self.tls_ca, self.tls_client_cert = tls_ca, tls_client_cert
        self.directory = directory
        self._steps: dict[str, Step] = {}

    @property
    def steps(self) -> Sequence[Step]:
        """In the order in which they were declared."""
        return tuple(self._steps.values())

    def step(
        self,
        sink: Sink | Mapping[str, Sink],
        *,
        name: str | None = None,
        every: Duration = "10s",
        stateful: bool = False,
        output: Output = "append",
        **sources: Source | FrameOf,
    ) -> Callable[[F], F]:
        """Declares a step: a decorator that leaves its function as it is.

        `sources` are handed over by the names of the function's parameters. With one stream among
        them the function is called with each micro-batch, and the others are read anew for it. With
        `stateful=True` it is called once, with the streams themselves: for windows with watermarks,
        joins of streams, and whatever else Spark keeps state for; `output` is Spark's output mode then.
        Without a stream it is a batch step: called once in each run, or `every` so often. Several sinks
        have names, and the function returns a dict with a DataFrame for each.

        Raises `invalid_argument` if something doesn't fit.
        """

        def declare(function: F) -> F:
            called = _checked(name or function.__name__, "name")
            if called in self._steps:
                raise InvalidArgument(f"step {called!r} is declared twice", field="name")
            checked = {key: source_of(source, key) for key, source in sources.items()}
            sinks = _sinks(sink)
            every_s = duration_us(every, "every") / 1e6
            step = Step(called, function, checked, sinks, every_s, stateful, output)
            _check(step)
            self._steps[called] = step
            return function

        return declare

    def run(
        self,
        spark: SparkSession | None = None,
        *,
        once: bool = False,
        only: Sequence[str] = (),
        address: str | None = None,
        directory: str | Path | None = None,
        progress: Callable[[StepRun], None] | None = None,
    ) -> list[StepRun]:
        """Runs the steps, on the given session or one of its own.

        With `once` each step does what there is to do, in their order, so that a step finds what
        those before it have written; then it returns. Otherwise all run side by side until SIGINT
        or SIGTERM, or until one fails, which is raised. `progress` hears of every micro-batch and
        batch that ended.
        """
        from fasti.pipeline.user_stage import run

        return run(self, spark, once, self._chosen(only), self.place(address, directory), progress)

    def place(self, address: str | None = None, directory: str | Path | None = None) -> Place:
        """Where a run takes place: what is given here, else what the pipeline was made with."""
        where = Path(directory or self.directory or DIRECTORY).absolute()
        broker = address or self.address or known_address()
        return Place(
            broker,
            self.token or known_token(),
            where,
            self.tls_ca or known_tls_ca(),
            self.tls_client_cert or known_tls_client_cert(),
        )

    def _chosen(self, only: Sequence[str]) -> list[Step]:
        for name in only:
            if name not in self._steps:
                known = ", ".join(self._steps) or "none"
                raise InvalidArgument(f"there is no step {name!r}: there are {known}", field="only")
        return [step for step in self.steps if not only or step.name in only]


def _checked(name: Any, field: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name!r} is not a valid name: use letters, digits, dots, dashes and underscores",
            field=field,
        )
    return name


def _sinks(given: Any) -> dict[str, Sink]:
    sinks = dict(given) if isinstance(given, Mapping) else {"": given}
    for name, sink in sinks.items():
        if not isinstance(sink, Sink):
            raise InvalidArgument(
                f"{sink!r} is not a sink: use topic(), log(), kv() or table()", field="sink"
            )
        if name:
            _checked(name, "sink")
    if not sinks:
        raise InvalidArgument("a step needs a sink", field="sink")
    return sinks


def _check(step: Step) -> None:
    """Raises unless sources and parameters have the same names and `stateful` fits the streams."""
    parameters = inspect.signature(step.function).parameters
    if set(parameters) != set(step.sources) or not parameters:
        raise InvalidArgument(
            f"step {step.name!r} takes {', '.join(parameters) or 'nothing'}, and its sources are "
            f"{', '.join(step.sources) or 'none'}: they must have the same names",
            field=step.name,
        )
    streams = step.streamed
    if len(streams) > 1 and not step.stateful:
        raise InvalidArgument(
            f"step {step.name!r} reads {len(streams)} streams ({', '.join(streams)}): joins of "
            "streams need stateful=True",
            field="stateful",
        )
    if step.stateful and (not streams or len(step.sinks) > 1):
        raise InvalidArgument(
            f"step {step.name!r}: stateful=True needs a stream, and one sink", field="stateful"
        )
