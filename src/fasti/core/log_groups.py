"""What a log's consumer groups add to the log: every hook that `LogKind` passes on.

The rows are `topic.body.partitions` (log_partition.py); what a topic's groups keep goes into
`topic.body.groups`. The methods that `Kind` has too mean the same here.

The sequencer's thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fasti.core.events import Event
from fasti.core.kind import Apply, Columns, Handler
from fasti.core.partition import FOREVER

if TYPE_CHECKING:
    from fasti.core.engine import Engine
    from fasti.core.state import Topic
    from fasti.core.work import Work

Int64s = NDArray[np.int64]


class LogGroups:
    """Consumer groups of all logs of an engine."""

    in_transactions: ClassVar[tuple[type, ...]] = ()

    def __init__(self, engine: Engine) -> None:
        self.engine, self.state, self.limits = engine, engine.state, engine.limits

    def handlers(self) -> dict[type, Handler]:
        """Who decides commands on groups."""
        return {}

    def commands(self) -> dict[type, Handler]:
        """Completions of storage."""
        return {}

    def events(self) -> dict[type[Event], Apply]:
        """Events of groups."""
        return {}

    # What rows do, told from apply: in steps and in replay. `grown` may be told of an append that
    # a transaction takes back: it is a hint to look.

    def grown(self, topic: Topic, partition: int) -> None:
        """A partition has more rows."""

    def trimmed(self, topic: Topic, partition: int, first_offset: int, at_us: int) -> None:
        """A partition begins at this offset now."""

    # A topic's life

    def make(self, topic: Topic) -> None:
        """The topic is new, or read back."""

    def changed(self, topic: Topic) -> None:
        """The topic has new settings."""

    def drop(self, topic: Topic) -> None:
        """The topic is being deleted."""

    def forget(self, topic: Topic) -> None:
        """Session state goes."""

    def counts(self, topic: Topic) -> dict[str, int]:
        """What `Count` tells besides the number of rows."""
        return {}

    # Steps

    def before(self, work: Work) -> bool:
        """Before the inputs; True if there is more to do."""
        return False

    def after(self, work: Work) -> bool:
        """After the inputs and after retention: hands out; True if there is more."""
        return False

    def next_us(self) -> int:
        """When it wants a step."""
        return FOREVER

    def detach(self, session: int) -> None:
        """A session is gone."""

    # Leases: `place` is the lease table's `partition`, group number << 12 | partition

    def expire(self, work: Work, topic: Topic, held: Int64s) -> None:
        """These slots of the lease table ran out."""

    def arm(self, topic: Topic, held: Int64s, tick: int) -> None:
        """After a start: these leases run their full length from here."""

    def restore_leases(self, topic: Topic, place: int, sequences: Int64s, held: Int64s) -> None:
        """Leases that a checkpoint kept have these slots now."""

    # Checkpoints

    def capture(self, topic: Topic, columns: Columns) -> dict[str, Any]:
        """What is durable of a topic's groups."""
        return {}

    def restore(self, topic: Topic, described: dict[str, Any], columns: Columns) -> None:
        """Back from `capture`."""

    def start(self, tick: int) -> None:
        """Replay is over."""
