"""What can be asked of sinks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from fasti.core.command import Command, Compound
from fasti.errors import FastiError

if TYPE_CHECKING:
    from fasti.core.sinks.claims import Claim


# Where parcels lie: a topic that nobody else uses.
PARCELS = "_sinks"


@dataclass(slots=True)
class PublishBatch(Command):
    """A batch has happened, by one event; not above the last one: nothing happens (`SinkAnswer`).

    Without `skip` all keys of the batch must be free. `claim` has claimed them piece by piece;
    without it the engine looks at all of them at once.
    """

    sink: str
    batch: int
    operation: str
    stages: list[str]
    skip: bool = False
    claim: Claim | None = None


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
