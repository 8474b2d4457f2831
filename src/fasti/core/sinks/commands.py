"""What can be asked of sinks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from fasti.core.command import Command, Compound
from fasti.errors import FastiError

# Where parcels lie: a topic that nobody else uses.
PARCELS = "_sinks"
CLAIMED_PER_CALL = 4_096


@dataclass(slots=True)
class PublishBatch(Command):
    """A batch has happened, by one event; not above the last one: nothing happens (`SinkAnswer`).

    Without `skip` all keys of the batch must be free. The claim of that number has claimed them piece
    by piece; without one the engine looks at all of them at once. With `dry_run` nothing happens, and
    what would stand in its way is raised.
    """

    sink: str
    batch: int
    operation: str
    stages: list[str]
    skip: bool = False
    claim: int = 0
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class ClaimStages(Command):
    """Begins to claim the keys of stages: of one, or of a sink's batch.

    The value is the claim's number; 0 if there are few keys, or none that could be claimed.
    """

    stages: list[str]
    sink: str = ""
    batch: int = 0


@dataclass(frozen=True, slots=True)
class ClaimKeys(Command):
    """Claims the next keys. The value is a `ClaimProgress`."""

    claim: int

    def count_rows(self) -> int:
        return CLAIMED_PER_CALL


class ClaimProgress(NamedTuple):
    """Whether there are more keys; and why the batch can't be published, if it can't."""

    more: bool
    refusal: FastiError | None


@dataclass(frozen=True, slots=True)
class ReleaseKeys(Command):
    """Gives the next keys back, and ends the claim. The value is a `ClaimProgress`."""

    claim: int

    def count_rows(self) -> int:
        return CLAIMED_PER_CALL


@dataclass(slots=True)
class DropStages(Command):
    """Stages of a sink that are not published are dropped; those that are not there are fine."""

    sink: str
    stages: list[str]


@dataclass(slots=True)
class ForgetSink(Command):
    """The sink is forgotten and its stages are dropped."""

    sink: str


@dataclass(slots=True)
class DescribeSinks(Command):
    """What is known of sinks by name, from `after` on: a list of `SinkView`."""

    sink: str = ""
    after: str = ""
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class SumSinks(Command):
    """All sinks and stages together, and the sinks that published last: a `SinkSums`."""

    named: int


class SinkSums(NamedTuple):
    """`latest` has the name of a sink, its last batch, and whether that is carried out."""

    stages: int
    rows: int
    publishing: int
    sinks: int
    latest: list[tuple[str, int, bool]]


@dataclass(frozen=True, slots=True)
class ReadParcels(Command):
    """The next parcels of a stage that is published: a list of `ParcelView`."""

    limit: int


class ParcelView(NamedTuple):
    """A parcel, where its contents lie, and what is to be done with them."""

    stage: str
    sequence: int
    location: int
    rows: int
    operation: str
    topic: str
    kind: str
    owner: str


@dataclass(slots=True)
class Carry(Compound):
    """The next parcel of a published stage: its commands and its end, in one step.

    `outcomes` are those of rows that no command stands for. The value is False if the parcel is not
    the next one (any more): then nothing happens.
    """

    is_bulk: ClassVar[bool] = True
    stage: str
    sequence: int
    commands: list[Any]
    outcomes: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class SinkAnswer:
    """What became of a batch, as far as it is carried out."""

    batch: int
    repeated: bool
    done: bool
    outcomes: dict[str, int]


@dataclass(slots=True)
class SinkView:
    """What is known of a sink; a batch of -1: none was published yet."""

    sink: str
    batch: int
    operation: str
    done: bool
    published_us: int
    outcomes: dict[str, int]
    stages: int
    rows: int


@dataclass(slots=True)
class SinkChanged:
    """An effect: a batch of this sink is carried out whole."""

    sink: str
    batch: int
    error: FastiError | None = None
