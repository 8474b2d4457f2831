"""The engine: a pure state machine over metadata.

`step(inputs, now_us, tick)` decides a batch of commands, hands out what is due, and returns what
happened (frames for the journal), what to answer, and what the world should do. It reads no clock
and does no I/O: `now_us` is the broker's wall time, which must not go back, and `tick` its
monotonic time, by which leases expire. Whoever drives it holds replies and deliveries back until
the frames are durable.

A command that raises anything but a `FastiError` met a fault of the program. If nothing of it was
applied it is refused (`internal`) and the step goes on; otherwise, and if no command was at fault,
`StepFailed` says that this engine is not to be used any more. Nothing of such a step was handed out.

After a restart: `replay` every frame of the journal, then `start`. What replay does is the same
`apply` as here, so both arrive at the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core import checkpoint, commands, queries
from fasti.core import events as ev
from fasti.core.agenda import FOREVER
from fasti.core.calendar.slices import Slices
from fasti.core.catalogue import deciding as catalogue
from fasti.core.catalogue.commands import FollowCatalogue, ReadIdle
from fasti.core.delivery import consumers, expiry, verbs
from fasti.core.delivery.leases import NEVER
from fasti.core.delivery.verbs import ack_together, find_acks
from fasti.core.idle import Idle
from fasti.core.kind import Handler, Kind
from fasti.core.kinds import KIND_CLASSES
from fasti.core.layout import ALONE, ShardPlace
from fasti.core.numbered import deciding as numbering
from fasti.core.numbered.commands import Numbered, Recall
from fasti.core.replies import Done, Reply, Step, TransactionReply
from fasti.core.routing import bindings, fanout
from fasti.core.routing.commands import Bind, ReadBindings, Unbind
from fasti.core.rows.memory import Memory
from fasti.core.sinks import claims
from fasti.core.sinks import commands as sink_commands
from fasti.core.sinks import deciding as sinks
from fasti.core.snapshots import OpenSnapshots
from fasti.core.state import ShardState, Topic
from fasti.core.timeline import produce, staging
from fasti.core.timeline.turns import TimelineTurns
from fasti.core.topics import change_topic, create_topic, delete_named, delete_topic, pause_topic
from fasti.core.traits import hint
from fasti.core.work import Fault, StepFailed, Work
from fasti.errors import FastiError, InternalError, InvalidArgument
from fasti.model import Limits, OnConflict, Outcome

# Commands besides those on topics whose handlers change nothing but by events.
_BY_EVENTS_ONLY = (
    *(commands.CreateTopic, commands.ChangeTopic, commands.DeleteTopic, commands.PauseTopic),
    *(commands.DescribeConsumers, commands.DropStage, commands.EndProducer),
    *(sink_commands.DropStages, sink_commands.ForgetSink, sink_commands.DescribeSinks),
    *(sink_commands.Carry, commands.Transaction, Bind, Unbind, ReadBindings),
    *(sink_commands.ReadParcels, sink_commands.SumSinks, *queries.HANDLERS),
    *(checkpoint.ReadUnwritten, FollowCatalogue, ReadIdle, Recall, *catalogue.HANDLERS),
)


def internal_error(command: Any, fault: BaseException) -> InternalError:
    """What the sender of a command is told that the engine failed on."""
    name = type(command).__name__
    return InternalError(
        f"the broker failed on this {name}, and nothing of it happened: {fault!r}; "
        "don't repeat it, and look into the broker's log",
        details={"command": name, "topic": str(getattr(command, "topic", ""))},
    )


def _came_out(command: Any, reply: Reply) -> bool:
    """Whether every row came out as its sender asked: one that keeps what is there is content.

    What was sent before happened then: the rest of a transaction must not happen once more.
    """
    failed = reply.status != Outcome.OK
    if isinstance(command, commands.Produce) and command.on_conflict == OnConflict.KEEP:
        failed &= reply.status != Outcome.DUPLICATE
    return not (reply.sent_before or failed.any())


class Engine:
    """One shard's engine. One thread only, except for reading snapshots."""

    def __init__(
        self,
        memory_bytes: int = 4 << 30,
        leases_max: int = 1 << 20,
        limits: Limits | None = None,
        place: ShardPlace = ALONE,
    ) -> None:
        self.limits = limits or Limits()
        self.memory = Memory(memory_bytes, leases_max, self.limits.producers_max)
        self.state = ShardState(self.memory, place)
        self.snapshots = OpenSnapshots(self.state)
        self.turns = TimelineTurns(self.state)
        self.slices = Slices(self.state)
        self.idle = Idle(self)
        self._decide: dict[type, Handler] = {
            commands.CreateTopic: create_topic,
            commands.ChangeTopic: change_topic,
            commands.DeleteTopic: partial(delete_named, delete=self.delete_topic),
            commands.PauseTopic: pause_topic,
            commands.DescribeConsumers: self._describe_consumers,
            commands.EndProducer: produce.end_producer,
            commands.Detach: self._detach,
            commands.Withdraw: self._withdraw,
            commands.Publish: staging.publish,
            commands.DropStage: staging.drop_stage,
            sink_commands.PublishBatch: sinks.publish_batch,
            sink_commands.DropStages: sinks.drop_stages,
            sink_commands.ForgetSink: sinks.forget_sink,
            sink_commands.DescribeSinks: sinks.describe_sinks,
            sink_commands.Carry: self._carry,
            sink_commands.ReadParcels: sinks.read_parcels,
            sink_commands.SumSinks: sinks.sum_sinks,
            sink_commands.ClaimStages: claims.claim_stages,
            sink_commands.ClaimKeys: claims.claim_keys,
            sink_commands.ReleaseKeys: claims.release_keys,
            commands.TakeSnapshot: self._take_snapshot,
            commands.KeepSnapshot: self.snapshots.keep,
            commands.DropSnapshot: self.snapshots.drop,
            commands.Tidy: self._tidy,
            commands.Transaction: self._transaction,
            checkpoint.ReadUnwritten: checkpoint.read_unwritten,
            checkpoint.BeginCheckpoint: self._begin_checkpoint,
            checkpoint.BlocksAdded: checkpoint.add_blocks,
            commands.SliceLoaded: self.slices.loaded,
            commands.RowsInstalled: self.slices.rows_installed,
            commands.RunsInstalled: self.slices.installed,
            Bind: bindings.bind,
            Unbind: bindings.unbind,
            ReadBindings: bindings.read_bindings,
            FollowCatalogue: partial(catalogue.follow, delete=self.delete_topic),
            ReadIdle: self.idle.read,
            Recall: numbering.recall_alone,
            **queries.HANDLERS,
            **catalogue.HANDLERS,
        }
        # Commands on a topic, by the kind of the topic.
        self._by_kind: dict[type, dict[str, Handler]] = {}
        self.kinds = [kind(self) for kind in KIND_CLASSES]
        self._in_transactions: set[type] = set()
        for kind in self.kinds:
            self._learn(kind)
        # Those that can be refused when they raise, if nothing was applied.
        self._refusable = frozenset({*_BY_EVENTS_ONLY, *self._by_kind})
        # Only those that have something to do there: every step passes here.
        self._before = [k for k in self.kinds if type(k).before is not Kind.before]
        self._after = [k for k in self.kinds if type(k).after is not Kind.after]
        self._next_us = [k for k in self.kinds if type(k).next_us is not Kind.next_us]

    def _learn(self, kind: Kind) -> None:
        self.state.learn(kind)
        self._decide.update(kind.commands())
        self._in_transactions.update(kind.in_transactions)
        for command, handler in kind.handlers().items():
            self._by_kind.setdefault(command, {})[kind.name] = handler

    def kind(self, name: str) -> Kind:
        """The kind of that name."""
        return self.state.kinds[name]

    # Recovery

    def replay(self, frame: int, events: Sequence[ev.Event]) -> None:
        """Applies a frame of the journal again."""
        for event in events:
            self.state.apply(event, frame)
        self.state.next_frame = frame + 1
        self.tidy()

    def start(self, tick: int) -> None:
        """Replay is over: every live lease runs its full length from here, or from its due time."""
        leases = self.memory.leases
        live = leases.live()
        places = np.stack([leases.topic[live], leases.partition[live]])
        for topic, number in np.unique(places, axis=1).T.tolist():
            held = live[(places[0] == topic) & (places[1] == number)]
            owner = self.state.topics[topic]
            start: NDArray[np.int64] | int = tick
            if owner.partitions:
                partition = owner.partitions[number]
                due = partition.arena.due.take(partition.ledger.slots(leases.sequence[held]))
                # Sent ahead of its time, as far as the last event's time can tell.
                start = tick + np.maximum(due - self.state.last_at_us, 0)
            leases.arm(held, start + leases.length[held], start + owner.settings.hold_us)
        self.memory.news.clear()
        self.slices.start()
        for kind in self.kinds:
            kind.start(tick)

    # Steps

    def step(self, inputs: Sequence[Any], now_us: int, tick: int) -> Step:
        """Decides everything that is to be decided now. Raises `StepFailed`, and nothing else."""
        # Time is held when the wall steps back: no event is older than the one before it.
        now_us = max(now_us, self.state.last_at_us)
        self.snapshots.ahead_us = now_us - tick
        work = Work(self.state, self.limits, now_us, tick)
        try:
            return self._step(work, inputs)
        except StepFailed:
            raise
        except Exception as fault:
            raise StepFailed(serving=work.serving) from fault

    def _step(self, work: Work, inputs: Sequence[Any]) -> Step:
        now_us, tick = work.now_us, work.tick
        step = Step(frames=work.frames, effects=work.effects, faults=work.faults)
        if tick >= self.memory.leases.expiry_bound:
            step.more |= self._grouped(work, verbs.expire)
        if self.memory.plans.first_us <= now_us:
            step.more |= self._grouped(work, expiry.lapse)
        for kind in self._before:
            if kind.all_topics:
                step.more |= self._grouped(work, kind.before)
        if len(inputs) > 1:
            step.replies += self._execute_all(work, inputs)
        else:
            step.replies += [self._execute(work, command, 0) for command in inputs]
        if self.state.stages:
            step.more |= self._grouped(work, staging.land)
        if self.snapshots:
            self.snapshots.drop_old(now_us)
        step.more |= self.turns.serve(work)
        for kind in self._after:
            if kind.all_topics:
                step.more |= self._grouped(work, kind.after)
        if self.state.mortal:
            step.more |= self._grouped(work, self.idle.look)
        if self.slices.agenda.first_us <= now_us:
            step.more |= self.slices.ask(work)
        self.tidy()
        self._plan_wake(work, step)
        return step

    def _grouped(self, work: Work, task: Callable[[Work], bool]) -> bool:
        work.begin_group()
        more = task(work)
        work.end_group()
        return more

    def _execute_all(self, work: Work, inputs: Sequence[Any]) -> list[Any]:
        """The replies to commands, of which some may be decided together."""
        replies: list[Any] = [None] * len(inputs)
        together = self._find_acks(work, inputs)
        for place, command in enumerate(inputs):
            if place in together:
                places = together[place]
                answers = self._ack_together(work, [inputs[its] for its in places])
                for its, reply in zip(places, answers, strict=False):
                    replies[its] = reply
            if replies[place] is None:
                replies[place] = self._execute(work, command, place)
        return replies

    def _find_acks(self, work: Work, inputs: Sequence[Any]) -> dict[int, list[int]]:
        try:
            return find_acks(inputs, self._is_credit)
        except Exception as fault:
            # It only looks: each command is decided by itself then.
            work.faults.append(Fault(None, fault))
            return {}

    def _is_credit(self, command: commands.Lease) -> bool:
        topic = self.state.by_name.get(command.topic)
        return topic is not None and topic.kind.is_credit(topic, command)

    def _ack_together(self, work: Work, acks: Sequence[commands.Ack]) -> Sequence[Reply]:
        """The replies of acks; none if each is to be decided by itself."""
        topic = self.state.by_name.get(acks[0].topic)
        if topic is None or topic.settings.kind not in self._by_kind[commands.Ack]:
            return ()
        if topic.own is not None and not all(topic.own.has_ids(ack.ids) for ack in acks):
            return ()
        mark = work.mark()
        work.begin_group()
        try:
            answers = ack_together(work, acks)
        except Exception as fault:
            if not work.take_back(mark):
                raise
            if not isinstance(fault, FastiError):
                work.faults.append(Fault(acks[0], fault))
            return ()
        work.end_group()
        return answers or ()

    def _execute(self, work: Work, command: Any, place: int) -> Any:
        """One command; if it is refused nothing of it remains."""
        numbered: Numbered | None = None
        if type(command) is Numbered:
            numbered, command = command, command.command
        mark = work.mark(touched=type(command) not in self._refusable)
        work.begin_group()
        try:
            if numbered is None:
                reply = self.handler(work, command)(work, command)
            else:
                reply = self._execute_once(work, numbered)
            work.end_group()
            return reply
        except FastiError as error:
            if work.applying or work.group_has_events or self.memory.undo.active:
                # A command is refused before it does anything: this is a fault like any other.
                return self._refuse(work, command, place, mark, error)
            work.abandon_group()
            return Reply.refused(error)
        except Exception as fault:
            return self._refuse(work, command, place, mark, fault)

    def _execute_once(self, work: Work, numbered: Numbered) -> Any:
        """A command of a call with a number: as it was answered before, or carried out and remembered."""
        reply = numbering.recall(work, numbered)
        if reply is None:
            reply = self.handler(work, numbered.command)(work, numbered.command)
            if work.group_has_events or numbering.is_kept(numbered):
                numbering.remember(work, numbered, reply)
        return reply

    def _refuse(
        self, work: Work, command: Any, place: int, mark: tuple[int, int], fault: Exception
    ) -> Reply:
        """The command raised by a fault of the program. Raises `StepFailed` if it left something."""
        try:
            untouched = work.take_back(mark)
        except Exception as worse:
            raise StepFailed(place) from worse
        if not untouched:
            raise StepFailed(place) from fault
        work.faults.append(Fault(command, fault))
        return Reply.refused(internal_error(command, fault))

    def handler(self, work: Work, command: Any) -> Handler:
        """Who decides a command. Raises `not_found`, and `invalid_argument` on another kind's."""
        by_kind = self._by_kind.get(type(command))
        if by_kind is None:
            return self._decide[type(command)]
        topic = work.topic(command.topic)
        kind = topic.settings.kind
        if kind not in by_kind:
            # `DescribeGroups` is "describe groups" to people.
            letters = type(command).__name__
            words = "".join(
                f" {letter.lower()}" if letter.isupper() else letter for letter in letters
            )
            raise InvalidArgument(
                f"{topic.name!r} is a {kind} topic, which does not support{words}"
                f"{hint(kind, words.strip())}",
                field="topic",
            )
        if not topic.kind.traits.has_groups and bool(getattr(command, "group", "")):
            raise InvalidArgument("groups are for log topics", field="group")
        if topic.own is not None:
            topic.own.check_command(topic.name, command)
        return self._produce if type(command) is commands.Produce else by_kind[kind]

    def _produce(self, work: Work, command: commands.Produce) -> Reply:
        produce.check_rows(command)
        if command.expires is not None:
            produce.check_expires(work.topic(command.topic))
        if not command.atomic or self.memory.undo.active:
            topic = work.topic(command.topic)
            if topic.bindings or topic.settings.relay:
                return fanout.produce(work, command)
            return self.produce_into(work, command)
        alone = commands.Transaction([replace(command, atomic=False)])
        reply = self._transaction(work, alone)
        if reply.error is not None:
            raise reply.error
        whole: Reply = reply.replies[0]
        if not reply.committed:
            work.begin_group()
            produce.note_aborted(work, command, whole)
        return whole

    def produce_into(self, work: Work, command: commands.Produce) -> Reply:
        """New messages of one topic, whatever its kind."""
        kind = work.topic(command.topic).settings.kind
        reply: Reply = self._by_kind[commands.Produce][kind](work, command)
        return reply

    def _transaction(self, work: Work, command: commands.Transaction) -> TransactionReply:
        for part in command.commands:
            if type(part) not in self._in_transactions:
                kind = type(part).__name__
                raise InvalidArgument(f"{kind} can't be part of a transaction", field="commands")
            if isinstance(part, commands.Produce) and part.stage:
                raise InvalidArgument("staging can't be part of a transaction", field="stage")
        undo = self.memory.undo
        work.begin_undo()
        replies: list[Any] = []
        error = None
        try:
            for part in command.commands:
                replies.append(self.handler(work, part)(work, part))
                if not _came_out(part, replies[-1]):
                    break
            else:
                undo.commit()
                return TransactionReply(True, replies)
        except FastiError as reason:
            if work.applying:
                raise
            error = reason
        undo.rollback()
        work.abandon_group()
        for reply in replies:
            if not reply.sent_before:
                reply.status[reply.status == Outcome.OK] = Outcome.ABORTED
        return TransactionReply(False, replies, error)

    def _carry(self, work: Work, command: sink_commands.Carry) -> Done:
        return sinks.carry(work, command, self._handle)

    def _handle(self, work: Work, command: Any) -> Reply:
        reply: Reply = self.handler(work, command)(work, command)
        return reply

    def _detach(self, work: Work, command: commands.Detach) -> Done:
        self.idle.left(work, self.turns.detach(command.session))
        for kind in self.kinds:
            kind.detach(command.session)
        return Done()

    def _withdraw(self, work: Work, command: commands.Withdraw) -> Done:
        self.turns.withdraw(command.session)
        for kind in self.kinds:
            kind.withdraw(command.session)
        return Done()

    def _describe_consumers(self, work: Work, command: commands.DescribeConsumers) -> Done:
        return consumers.describe(work, command, lambda topic: topic.kind.lines(topic))

    def delete_topic(self, work: Work, topic: Topic) -> Done:
        """A topic goes, with all that it holds and all who wait for it."""
        topic.kind.deleting(work, topic)
        done = delete_topic(work, topic)
        self.turns.forget(topic)
        topic.kind.forget(topic)
        return done

    # Snapshots and checkpoints

    def _take_snapshot(self, work: Work, command: commands.TakeSnapshot) -> Done:
        if command.topic:
            # Raises what a listing is refused with.
            self.handler(work, commands.List(command.topic))
        return self.snapshots.take(work, command)

    def _begin_checkpoint(self, work: Work, command: checkpoint.BeginCheckpoint) -> Done:
        return Done(checkpoint.begin(self, command, work.now_us))

    # Housekeeping

    def _tidy(self, work: Work, command: commands.Tidy) -> Done:
        return Done(self.tidy())

    def tidy(self) -> bool:
        """Gives memory back where something finished: a bounded piece. True if there is more."""
        untidy = self.memory.untidy
        for partition in list(untidy):
            if not partition.tidy():
                untidy.discard(partition)
        return bool(untidy)

    def _plan_wake(self, work: Work, step: Step) -> None:
        first_us = self.turns.next_us()
        for agenda in (self.slices.agenda, self.idle.agenda, self.memory.plans):
            if agenda.first_us < first_us:
                first_us = min(first_us, agenda.next_us())
        for kind in self._next_us:
            if kind.all_topics:
                first_us = min(first_us, kind.next_us())
        if self.state.stages:
            first_us = min(first_us, staging.next_expiry_us(self.state))
        for snapshot in self.snapshots.values():
            first_us = min(first_us, snapshot.deadline_us)
        step.wake_at_us = max(first_us, work.now_us) if first_us < FOREVER else None
        bound = self.memory.leases.expiry_bound
        step.wake_at_tick = bound if bound < NEVER else None
