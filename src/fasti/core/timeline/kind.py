"""Timelines: messages by (due, sequence), in the arena; what other kinds build on."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from fasti.core import commands, traits
from fasti.core.commands import Lease, Produce
from fasti.core.delivery.verbs import VERBS
from fasti.core.events import Event, Int64s
from fasti.core.keys import Rows
from fasti.core.kind import Apply, Handler, Kind
from fasti.core.replies import Reply
from fasti.core.state import Topic
from fasti.core.timeline import change, produce, reads
from fasti.core.timeline.applying import Applying
from fasti.core.timeline.bury import Bury, bury
from fasti.core.timeline.corrupt import GiveUp, give_up
from fasti.core.timeline.judging import LeasableTopic, Piece, leased_at
from fasti.core.traits import Traits
from fasti.core.work import Work

if TYPE_CHECKING:
    from fasti.core.engine import Engine


class TimelineKind(Kind):
    """Everything that can be asked of a timeline."""

    traits: ClassVar[Traits] = traits.TIMELINE
    in_transactions: ClassVar[tuple[type, ...]] = (
        commands.Produce,
        commands.Update,
        commands.Move,
        commands.Cancel,
        commands.Purge,
        Bury,
        commands.Extend,
        commands.Release,
        commands.Ack,
        commands.Nack,
        commands.Reject,
    )

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._applying = Applying(self.state)

    def events(self) -> dict[type[Event], Apply]:
        """What happens to messages in partitions, of whatever kind."""
        return self._applying.events()

    def put_rows(
        self,
        work: Work,
        topic: Topic,
        command: Produce,
        piece: Rows,
        begin: int,
        due: Int64s,
        rows: Int64s,
        reply: Reply,
    ) -> None:
        """Decides them as if they were produced here."""
        produce.put_rows(work, topic, command, begin, due, rows, reply)

    def leasable(self, topic: Topic, group: str) -> LeasableTopic:
        """The topic."""
        return LeasableTopic(topic)

    def is_credit(self, topic: Topic, command: Lease) -> bool:
        """Whether a `Lease` does no more than add to its session's credit."""
        return self.engine.turns.is_credit(topic, command)

    def leased_at(self, topic: Topic, place: int, sequences: Int64s) -> Piece:
        """Leased messages of a partition."""
        return leased_at(topic, place, sequences)

    def handlers(self) -> dict[type, Handler]:
        """Who decides commands on timelines."""
        return {
            commands.Produce: produce.produce,
            commands.Update: change.update,
            commands.Move: change.move,
            commands.Cancel: change.cancel,
            commands.Redrive: change.redrive,
            commands.Purge: change.purge,
            Bury: bury,
            GiveUp: give_up,
            commands.Lease: self.engine.turns.lease,
            commands.Unheard: self.engine.turns.unheard,
            commands.Heard: self.engine.turns.heard,
            **VERBS,
            commands.Get: reads.get,
            commands.List: self.engine.list_page,
            commands.Count: reads.count,
            commands.Forecast: reads.forecast,
        }
