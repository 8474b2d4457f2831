"""Runs a pipeline: its stages one after the other, once or on and on.

A stage is a function of a `Run`: it does what is left to do, in steps, each of which ends with a
commit that says how far it came. So a stage can be killed anywhere and goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pyspark.sql import SparkSession

from fasti.client.client import Client
from fasti.pipeline.lake import Lake


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage is: rows done of those known to be there (None: nobody knows)."""

    stage: str
    done: int
    total: int | None
    seconds: float

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.done / self.seconds if self.seconds else 0.0


class Run(Protocol):
    """What a stage is given."""

    spark: SparkSession
    lake: Lake
    client: Client
    address: str
    token: str | None
    on_gap: Literal["fail", "skip"]

    def progress(self, done: int, total: int | None = None) -> None:
        """Tells how far the stage is; may be called often."""

    def stopping(self) -> bool:
        """Whether to end after this step."""


Stage = Callable[[Run], int]
"""Does what is there to do; returns how many rows that were. Its `__name__` is the stage's name."""


@dataclass(frozen=True)
class Pipeline:
    """What runs, on which lake, from which broker."""

    lake: Lake
    stages: Sequence[Stage]
    address: str = "127.0.0.1:7170"
    token: str | None = None
    on_gap: Literal["fail", "skip"] = "fail"
    options: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """What a run did: rows by stage, how many rounds, whether it was asked to stop."""

    rows: dict[str, int]
    rounds: int
    stopped: bool


def run(
    pipeline: Pipeline,
    spark: SparkSession,
    *,
    once: bool = True,
    interval: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Done:
    """Runs all stages up to what the feed has when it begins; with `interval` again and again.

    SIGINT and SIGTERM end it after the step that is under way. Raises `locked` if another process
    runs on this lake, `gone` if the feed doesn't reach back to where the lake is.
    """
    raise NotImplementedError
