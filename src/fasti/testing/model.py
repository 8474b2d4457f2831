"""A naive model of the engine: what a broker promises, in dicts and lists.

Every rule of timeline topics stands here once more, a message at a time and without any index, so
that one can see at a glance that it is right. Property tests give the same commands to the engine
and to this model and compare every answer; users may test their own code against it.

The model decides everything but three things, which it is told afterwards because the engine may
choose them freely: the partition of messages without a key (`produce(partition=...)`), which
waiting session gets which of the messages that are due, and the token of a lease (`handed_out`
checks that the choice was allowed).

The order within a step is the engine's: `begin_step` lets leases expire, then come the commands,
then `land` lets published stages land, then waiting consumers are served.

A refused command raises the same `FastiError` as the engine and changes nothing. One thread only.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from fasti.core.hashing import partitions_of
from fasti.core.retry import retry_delays
from fasti.errors import (
    AlreadyExists,
    FastiError,
    InvalidArgument,
    NotFound,
    TopicMismatch,
    UnknownProducer,
)
from fasti.model import (
    MINUTE_US,
    OnConflict,
    Outcome,
    State,
    TopicSettings,
    make_id,
    partition_of,
    sequence_of,
)

RECEIPTS_KEPT = 8


class Broken(AssertionError):
    """The engine did something that the model does not allow."""


@dataclass
class Answer:
    """The outcome of one row. `at_us` and `by` where the outcome tells them."""

    status: Outcome
    id: int = 0
    version: int = 0
    at_us: int = 0
    by: str = ""
    # The whole batch was sent before, and this is its receipt.
    sent_before: bool = False


@dataclass
class Message:
    """One message that is not finished."""

    id: int
    key: str | None
    owner: str
    payload: bytes
    due_us: int
    state: State = State.SCHEDULED
    version: int = 1
    attempts: int = 0
    reason: str = ""
    # While leased. The ticks say when the lease ends and how far heartbeats can carry it.
    consumer: str = ""
    token: int = 0
    length_us: int = 0
    until_tick: int = 0
    hold_tick: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """In what order messages of a partition are handed out."""
        return self.due_us, self.id

    def visible_state(self, now_us: int) -> str:
        """The word that a reader sees."""
        if self.state == State.SCHEDULED and self.due_us <= now_us:
            return "ready"
        return self.state.name.lower()


@dataclass
class Topic:
    """A topic: its messages, what each key last named, and what became of the finished."""

    name: str
    settings: TopicSettings
    messages: dict[int, Message] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    # By id: how a message ended, and when. Forgotten by age when it is looked up.
    ended: dict[int, tuple[Outcome, int]] = field(default_factory=dict)
    next_sequence: dict[int, int] = field(default_factory=dict)
    done: int = 0
    cancelled: int = 0
    # Sessions that wait, in order: (session, consumer, credit). And who has which name.
    waiting: list[tuple[int, str, int]] = field(default_factory=list)
    sessions: dict[str, int] = field(default_factory=dict)

    def next_id(self, partition: int) -> int:
        """The id that the partition's next message will get."""
        return make_id(partition, self.next_sequence.get(partition, 1))

    def was_given(self, message_id: int) -> bool:
        """Whether the id was ever given to a message."""
        partition, sequence = partition_of(message_id), sequence_of(message_id)
        given = self.next_sequence.get(partition, 1)
        return 0 <= partition < self.settings.partitions and 0 < sequence < given

    def live_by_key(self, key: str | None) -> Message | None:
        """The live message that has the key: scheduled, leased, or about to land."""
        if key is None:
            return None
        message = self.messages.get(self.keys.get(key, 0))
        return None if message is None or message.state == State.DEAD else message


@dataclass
class Producer:
    """What an idempotent producer sent last, and the answers to its last batches."""

    last_sequence: int = 0
    known_until_us: int = 0
    receipts: dict[int, list[Answer]] = field(default_factory=dict)


@dataclass
class Stage:
    """Messages that wait to be published, in the order in which they will land."""

    topic: str
    opened_at_us: int
    ids: list[int] = field(default_factory=list)
    published: bool = False
    dropping: bool = False
    skipped: set[int] = field(default_factory=set)


When = tuple[str, Sequence[int] | int] | None


class Model:
    """The whole shard. Attributes are plain: look at them."""

    def __init__(self, landed_per_step: int = 16_384) -> None:
        self.topics: dict[str, Topic] = {}
        self.producers: dict[str, Producer] = {}
        self.stages: dict[str, Stage] = {}
        self.now_us = 0
        self.tick = 0
        self.landed_per_step = landed_per_step

    # Time

    def begin_step(self, now_us: int, tick: int) -> None:
        """Time goes on (the wall never back) and leases run out."""
        self.now_us, self.tick = max(now_us, self.now_us), tick
        for topic in self.topics.values():
            for message in self._leased(topic):
                if message.until_tick <= tick:
                    self._fail(topic, message, "the lease expired", message.due_us)

    def land(self) -> None:
        """Published stages land, a bounded number of rows a step; old ones are dropped."""
        budget = self.landed_per_step
        for name, stage in list(self.stages.items()):
            if stage.published and budget > 0:
                budget -= self._land(name, stage, budget)
        if budget <= 0:
            return
        for name, stage in list(self.stages.items()):
            age_us = self.topics[stage.topic].settings.stage_age_us
            expired = stage.opened_at_us + age_us <= self.now_us
            if not stage.published and (expired or stage.dropping):
                stage.dropping = True
                self._drop(name, stage, budget)
                return

    def restart(self, tick: int, last_at_us: int) -> None:
        """The process died: waiting sessions are forgotten, leases run their full length anew.

        That of a message sent ahead runs from its due time, as the last event's time tells it.
        """
        self.tick = tick
        for topic in self.topics.values():
            topic.waiting.clear()
            topic.sessions.clear()
            for message in self._leased(topic):
                start = tick + max(0, message.due_us - last_at_us)
                message.until_tick = start + message.length_us
                message.hold_tick = start + topic.settings.hold_us

    # Topics

    def create_topic(self, name: str, settings: TopicSettings) -> None:
        known = self.topics.get(name)
        if known is None:
            self.topics[name] = Topic(name, settings)
        elif known.settings != settings:
            raise TopicMismatch("exists with other settings")

    def change_topic(self, name: str, settings: TopicSettings) -> None:
        topic = self._topic(name)
        for fixed in ("kind", "partitions"):
            if getattr(settings, fixed) != getattr(topic.settings, fixed):
                raise InvalidArgument("can't change", field=fixed)
        topic.settings = settings

    def delete_topic(self, name: str) -> None:
        self._topic(name)
        del self.topics[name]
        for stage in [s for s, its in self.stages.items() if its.topic == name]:
            del self.stages[stage]

    # Producing

    def produce(
        self,
        topic: str,
        payloads: Sequence[bytes],
        keys: Sequence[str | None] | None = None,
        when: When = None,
        partition: int = 0,
        owner: str = "",
        on_conflict: OnConflict = OnConflict.REJECT,
        atomic: bool = False,
        producer: str = "",
        producer_sequence: int = 0,
        stage: str = "",
    ) -> list[Answer]:
        """Rows come one after another. `partition` is where those without a key went."""
        if atomic:
            command = {k: v for k, v in locals().items() if k not in ("self", "atomic")}
            _, answers_of, error = self.transaction([("produce", command)])
            if error is not None:
                raise error
            return answers_of[0]
        where = self._topic(topic)
        dues = self._moments(when, len(payloads))
        self._check_stage(where, stage)
        if producer:
            known = self._known_batch(producer, producer_sequence, len(payloads))
            if known is not None:
                return known
        if stage and stage not in self.stages:
            self.stages[stage] = Stage(topic, self.now_us)
        answers = []
        landing: list[tuple[int, int]] = []
        for row, payload in enumerate(payloads):
            key = keys[row] if keys else None
            place = partition if key is None else route(key, where.settings.partitions)
            new = Message(where.next_id(place), key, owner, payload, dues[row])
            holder = None if stage else where.live_by_key(key)
            if holder is not None:
                answers.append(self._conflict(holder, new, on_conflict))
                continue
            where.next_sequence[place] = sequence_of(new.id) + 1
            where.messages[new.id] = new
            answers.append(Answer(Outcome.OK, new.id, 1))
            if stage:
                new.state = State.STAGED
                landing.append((place, new.id))
            elif key is not None:
                where.keys[key] = new.id
        if stage:
            # A batch is staged partition by partition.
            self.stages[stage].ids += [message_id for _, message_id in sorted(landing)]
        if producer:
            known_until_us = self.now_us + where.settings.producer_age_us
            self._advance_producer(producer, producer_sequence, known_until_us, answers)
        return answers

    def _conflict(self, holder: Message, new: Message, on_conflict: OnConflict) -> Answer:
        if on_conflict == OnConflict.REJECT:
            return Answer(Outcome.CONFLICT, holder.id, holder.version)
        if on_conflict == OnConflict.KEEP:
            return Answer(Outcome.DUPLICATE, holder.id, holder.version)
        if holder.state != State.SCHEDULED:
            return self._told(Outcome.LEASED, holder)
        if holder.owner not in ("", new.owner):
            return Answer(Outcome.NOT_OWNER, holder.id, holder.version)
        holder.payload, holder.due_us, holder.attempts = new.payload, new.due_us, 0
        holder.version += 1
        return Answer(Outcome.OK, holder.id, holder.version)

    def _check_stage(self, topic: Topic, name: str) -> None:
        stage = self.stages.get(name)
        if stage is not None and (stage.published or stage.dropping or stage.topic != topic.name):
            raise InvalidArgument("published, expired, or another topic's", field="stage")

    def _known_batch(self, name: str, number: int, count: int) -> list[Answer] | None:
        if number < 1:
            raise InvalidArgument("batches are numbered from 1", field="producer_sequence")
        known = self.producers.get(name)
        if known and known.known_until_us < self.now_us:
            known = None
        if known is None:
            if number != 1:
                raise UnknownProducer("not known any more")
            self.producers.pop(name, None)
            return None
        if number == known.last_sequence + 1:
            return None
        if number > known.last_sequence:
            raise InvalidArgument("one in between is missing", field="producer_sequence")
        receipt = known.receipts.get(number)
        if receipt is None or len(receipt) != count:
            receipt = [Answer(Outcome.OK) for _ in range(count)]
        return [
            Answer(
                Outcome.DUPLICATE if a.status == Outcome.OK else a.status,
                a.id,
                a.version,
                sent_before=True,
            )
            for a in receipt
        ]

    def _advance_producer(
        self, name: str, number: int, known_until_us: int, answers: list[Answer]
    ) -> None:
        known = self.producers.setdefault(name, Producer())
        known.last_sequence, known.known_until_us = number, known_until_us
        known.receipts[number] = [Answer(a.status, a.id, a.version) for a in answers]
        for old in [n for n in known.receipts if n <= number - RECEIPTS_KEPT]:
            del known.receipts[old]

    # Changing

    def update(
        self,
        topic: str,
        payloads: Sequence[bytes],
        ids: Sequence[int] | None = None,
        keys: Sequence[str] | None = None,
        versions: Sequence[int] | int = 0,
        owner: str = "",
    ) -> list[Answer]:
        where = self._topic(topic)

        def do(row: int, message: Message) -> None:
            message.payload = payloads[row]

        return self._change(where, ids, keys, versions, owner, do)

    def move(
        self,
        topic: str,
        when: When,
        ids: Sequence[int] | None = None,
        keys: Sequence[str] | None = None,
        versions: Sequence[int] | int = 0,
        owner: str = "",
    ) -> list[Answer]:
        where = self._topic(topic)
        dues = self._moments(when, len(ids if ids is not None else keys or ()))

        def do(row: int, message: Message) -> None:
            message.due_us = dues[row]

        return self._change(where, ids, keys, versions, owner, do)

    def cancel(
        self,
        topic: str,
        ids: Sequence[int] | None = None,
        keys: Sequence[str] | None = None,
        versions: Sequence[int] | int = 0,
        owner: str = "",
    ) -> list[Answer]:
        where = self._topic(topic)

        def do(row: int, message: Message) -> None:
            self._end(where, message, Outcome.CANCELLED)

        return self._change(where, ids, keys, versions, owner, do)

    def _change(
        self,
        topic: Topic,
        ids: Sequence[int] | None,
        keys: Sequence[str] | None,
        versions: Sequence[int] | int,
        owner: str,
        do: Any,
    ) -> list[Answer]:
        answers: list[Answer] = []
        goods: list[tuple[int, Message]] = []
        for row in range(len(ids if ids is not None else keys or ())):
            message_id = ids[row] if ids is not None else topic.keys.get((keys or ())[row], 0)
            message = topic.messages.get(message_id)
            expected = versions if isinstance(versions, int) else versions[row]
            if message is None or message.state != State.SCHEDULED:
                answers.append(self._why_not(topic, message_id, by_key=ids is None))
            elif message.owner not in ("", owner):
                answers.append(Answer(Outcome.NOT_OWNER, message_id, message.version))
            elif expected not in (0, message.version):
                answers.append(Answer(Outcome.CONFLICT, message_id, message.version))
            else:
                answers.append(Answer(Outcome.OK, message_id, message.version + 1))
                goods.append((row, message))
        for row, message in self._each_once(goods, answers):
            do(row, message)
            message.version += 1
        return answers

    def _each_once(
        self, goods: list[tuple[int, Message]], answers: list[Answer]
    ) -> Iterator[tuple[int, Message]]:
        """Rows are judged as things stood before the batch; then each message changes once.

        Of several rows that could change a message the first one does, the others are duplicates.
        """
        seen: set[int] = set()
        for row, message in goods:
            if message.id in seen:
                answers[row] = Answer(Outcome.DUPLICATE, message.id)
            else:
                seen.add(message.id)
                yield row, message

    def redrive(
        self,
        topic: str,
        ids: Sequence[int],
        keys: Sequence[str | None] | None = None,
        when: When = None,
    ) -> list[Answer]:
        where = self._topic(topic)
        dues = self._moments(when, len(ids))
        answers, changed = [], set()
        for row, message_id in enumerate(ids):
            message = where.messages.get(message_id)
            key = keys[row] if keys else None
            if message_id in changed:
                answers.append(Answer(Outcome.DUPLICATE, message_id))
            elif message is None or message.state != State.DEAD:
                answers.append(self._not_dead(where, message_id))
            elif where.live_by_key(key) is not None:
                answers.append(Answer(Outcome.CONFLICT, message_id, message.version))
            else:
                message.state, message.due_us, message.attempts = State.SCHEDULED, dues[row], 0
                message.reason, message.key = "", key
                message.version += 1
                if key is not None:
                    where.keys[key] = message_id
                changed.add(message_id)
                answers.append(Answer(Outcome.OK, message_id, message.version))
        return answers

    def purge(self, topic: str, ids: Sequence[int]) -> list[Answer]:
        where = self._topic(topic)
        answers, changed = [], set()
        for message_id in ids:
            message = where.messages.get(message_id)
            if message_id in changed:
                answers.append(Answer(Outcome.DUPLICATE, message_id))
            elif message is None or message.state != State.DEAD:
                answers.append(self._not_dead(where, message_id))
            else:
                self._end(where, message, Outcome.DEAD)
                changed.add(message_id)
                answers.append(Answer(Outcome.OK, message_id, message.version))
        return answers

    def _not_dead(self, topic: Topic, message_id: int) -> Answer:
        """Why a message can't be brought back or purged: a live one is in the way of that."""
        message = topic.messages.get(message_id)
        if message is not None and message.state == State.SCHEDULED:
            return Answer(Outcome.CONFLICT, message_id, message.version)
        return self._why_not(topic, message_id, by_key=False)

    # Leases

    def lease(self, topic: str, session: int, consumer: str, count: int) -> list[Message]:
        """A session waits for `count` more. Returns the leases that a new session gets back."""
        where = self._topic(topic)
        resumed = []
        if any(its == session and name != consumer for its, name, _ in where.waiting):
            raise InvalidArgument("a session waits under one name", field="consumer")
        before = where.sessions.get(consumer)
        if before != session:
            if before is not None:
                self._leave(where, before)
            where.sessions[consumer] = session
            for message in self._leased(where):
                if message.consumer == consumer:
                    # The engine gives a new token, which `resumed` is told: old ones are stale.
                    message.token = -1
                    self._renew(message)
                    resumed.append(message)
        for place, (its, name, credit) in enumerate(where.waiting):
            if its == session:
                where.waiting[place] = (its, name, credit + count)
                break
        else:
            where.waiting.append((session, consumer, count))
        return resumed

    def credit(self, topic: str, session: int) -> int:
        """How many messages a session still waits for."""
        return sum(credit for its, _, credit in self.topics[topic].waiting if its == session)

    def limit_credit(self, topic: str, session: int, most: int) -> None:
        """A session doesn't wait for more than this many (what it would not wait for is over)."""
        where = self.topics[topic]
        where.waiting = [
            (its, name, min(credit, most) if its == session else credit)
            for its, name, credit in where.waiting
            if its != session or most
        ]

    def detach(self, session: int) -> None:
        for topic in self.topics.values():
            self._leave(topic, session)

    def heartbeat(self, topic: str, consumer: str) -> int:
        mine = [m for m in self._leased(self._topic(topic)) if m.consumer == consumer]
        for message in mine:
            self._renew(message)
        return len(mine)

    def available(self, topic: str, partition: int) -> list[Message]:
        """What may be handed out now from a partition, in order."""
        where = self.topics[topic]
        limit_us = self.now_us + where.settings.lookahead_us
        return sorted(
            (
                m
                for m in where.messages.values()
                if m.state == State.SCHEDULED
                and m.due_us <= limit_us
                and partition_of(m.id) == partition
            ),
            key=lambda m: m.order,
        )

    def pressing(self, topic: str, partition: int) -> list[Message]:
        """What can't wait for the next batch: two thirds of the lookahead are left, or less."""
        limit_us = self.now_us + self.topics[topic].settings.lookahead_us * 2 // 3
        return [m for m in self.available(topic, partition) if m.due_us <= limit_us]

    def handed_out(
        self,
        topic: str,
        session: int,
        token: int,
        ids: Sequence[int],
        loaded_until_us: int,
    ) -> None:
        """Checks and takes note that the engine leased these, in this order, of one partition.

        What is due at or after `loaded_until_us` may not be in memory yet: it can be overtaken.
        """
        where = self.topics[topic]
        credit = self.credit(topic, session)
        _require(0 < len(ids) <= credit, f"{len(ids)} messages for a credit of {credit}")
        ready = self.available(topic, partition_of(ids[0]))
        wanted = set(ids)
        _require(len(wanted) == len(ids), "a message is handed out twice at once")
        strangers = wanted - {m.id for m in ready}
        _require(not strangers, f"{strangers} are not to be handed out now")
        _require([m.id for m in ready if m.id in wanted] == list(ids), "out of order")
        last = where.messages[ids[-1]].order
        passed = [m for m in ready if m.id not in wanted and m.order < last]
        _require(all(m.due_us >= loaded_until_us for m in passed), f"passed over {passed}")
        consumer = next(name for its, name, _ in where.waiting if its == session)
        for message_id in ids:
            message = where.messages[message_id]
            start = self.tick + max(0, message.due_us - self.now_us)
            message.state, message.token, message.consumer = State.LEASED, token, consumer
            message.attempts += 1
            message.length_us = where.settings.lease_us
            message.until_tick = start + message.length_us
            message.hold_tick = start + where.settings.hold_us
        self.limit_credit(topic, session, credit - len(ids))

    def resumed(self, topic: str, token: int, ids: Sequence[int]) -> None:
        """Takes note of the new token of leases that a returning consumer got back."""
        for message_id in ids:
            message = self.topics[topic].messages[message_id]
            _require(message.state == State.LEASED and message.token == -1, "was not resumed")
            message.token = token

    def extend(
        self, topic: str, ids: Sequence[int], tokens: Sequence[int], length_us: int
    ) -> list[Answer]:
        def do(row: int, message: Message) -> None:
            message.length_us = length_us
            message.until_tick = self.tick + length_us

        return self._under_lease(topic, ids, tokens, do)

    def ack(self, topic: str, ids: Sequence[int], tokens: Sequence[int]) -> list[Answer]:
        def do(row: int, message: Message) -> None:
            self._end(self.topics[topic], message, Outcome.DONE)

        return self._under_lease(topic, ids, tokens, do)

    def release(
        self, topic: str, ids: Sequence[int], tokens: Sequence[int], when: When = None
    ) -> list[Answer]:
        self._topic(topic)
        dues = self._moments(when, len(ids))

        def do(row: int, message: Message) -> None:
            message.attempts -= 1
            self._give_back(message, dues[row])
            message.version += 1

        return self._under_lease(topic, ids, tokens, do)

    def nack(
        self, topic: str, ids: Sequence[int], tokens: Sequence[int], reason: str = ""
    ) -> list[Answer]:
        def do(row: int, message: Message) -> None:
            where = self.topics[topic]
            delay_us = retry_delays(
                where.settings.retry,
                np.array([message.id], dtype=np.int64),
                np.array([message.attempts], dtype=np.uint16),
            )
            if not self._fail(where, message, reason, self.now_us + int(delay_us[0])):
                message.version += 1

        return self._under_lease(topic, ids, tokens, do)

    def reject(
        self, topic: str, ids: Sequence[int], tokens: Sequence[int], reason: str = ""
    ) -> list[Answer]:
        def do(row: int, message: Message) -> None:
            self._die(message, reason)

        return self._under_lease(topic, ids, tokens, do)

    def _under_lease(
        self, name: str, ids: Sequence[int], tokens: Sequence[int], do: Any
    ) -> list[Answer]:
        topic = self._topic(name)
        answers: list[Answer] = []
        goods: list[tuple[int, Message]] = []
        for row, (message_id, token) in enumerate(zip(ids, tokens, strict=True)):
            message = topic.messages.get(message_id)
            if message is None or message.state not in (State.LEASED, State.SCHEDULED):
                answers.append(self._why_not(topic, message_id, by_key=False))
            elif message.state == State.SCHEDULED or message.token != token:
                answers.append(Answer(Outcome.STALE_LEASE, message_id, message.version))
            else:
                answers.append(Answer(Outcome.OK, message_id, message.version))
                goods.append((row, message))
        for row, message in self._each_once(goods, answers):
            do(row, message)
            answers[row].version = message.version
        return answers

    # Stages

    def publish(self, stage: str, skip_conflicts: bool = False) -> tuple[int, list[int]]:
        its = self._stage(stage)
        topic = self.topics[its.topic]
        taken, seen = [], set()
        for message_id in its.ids:
            key = topic.messages[message_id].key
            if key is not None and (topic.live_by_key(key) is not None or key in seen):
                taken.append(message_id)
            if key is not None:
                seen.add(key)
        if taken and not skip_conflicts:
            raise AlreadyExists("keys are taken")
        its.published, its.skipped = True, set(taken)
        for message_id in its.ids:
            key = topic.messages[message_id].key
            if key is not None and message_id not in its.skipped:
                topic.keys[key] = message_id
        # Those that publish first land first.
        del self.stages[stage]
        self.stages[stage] = its
        return len(its.ids) - len(taken), sorted(taken)

    def drop_stage(self, stage: str) -> int:
        its = self._stage(stage)
        rows = len(its.ids)
        self._drop(stage, its, rows)
        return rows

    def _drop(self, name: str, stage: Stage, budget: int) -> None:
        for message_id in stage.ids[:budget]:
            del self.topics[stage.topic].messages[message_id]
        stage.ids = stage.ids[budget:]
        if not stage.ids:
            del self.stages[name]

    def _land(self, name: str, stage: Stage, budget: int) -> int:
        topic = self.topics[stage.topic]
        landed, stage.ids = stage.ids[:budget], stage.ids[budget:]
        for message_id in landed:
            if message_id in stage.skipped:
                del topic.messages[message_id]
            else:
                topic.messages[message_id].state = State.SCHEDULED
        if not stage.ids:
            del self.stages[name]
        return len(landed)

    def _stage(self, name: str) -> Stage:
        if name not in self.stages or self.stages[name].dropping:
            raise NotFound("expired, or never was")
        if self.stages[name].published:
            raise InvalidArgument("published already", field="stage")
        return self.stages[name]

    # Transactions

    def transaction(
        self, commands: Sequence[tuple[str, dict[str, Any]]]
    ) -> tuple[bool, list[list[Answer]], FastiError | None]:
        """(Whether it happened, the answers as far as it got, what refused it)."""
        before = copy.deepcopy(vars(self))
        answers: list[list[Answer]] = []
        error = None
        try:
            for name, arguments in commands:
                answers.append(getattr(self, name)(**arguments))
                if not all(as_asked(name, arguments, a) for a in answers[-1]):
                    break
            else:
                return True, answers, None
        except FastiError as reason:
            error = reason
        vars(self).update(before)
        for part in answers:
            for answer in part:
                if answer.status == Outcome.OK:
                    answer.status = Outcome.ABORTED
        return False, answers, error

    # Reads

    def get(
        self, topic: str, ids: Sequence[int] | None = None, keys: Sequence[str] | None = None
    ) -> list[tuple[Outcome, Message | None]]:
        where = self._topic(topic)
        found: list[tuple[Outcome, Message | None]] = []
        for name in ids if ids is not None else keys or ():
            message_id = name if isinstance(name, int) else where.keys.get(name, 0)
            message = where.messages.get(message_id)
            if message is not None and message.state != State.STAGED:
                found.append((Outcome.OK, message))
            elif message is not None:
                found.append((Outcome.NOT_FOUND, None))
            else:
                found.append((self._why_not(where, message_id, by_key=ids is None).status, None))
        return found

    def listed(
        self,
        topic: str,
        now_us: int,
        due_from_us: int | None = None,
        due_to_us: int | None = None,
        state: str | None = None,
        owner: str | None = None,
    ) -> list[Message]:
        """All that fit, in id order."""
        return [
            m
            for _, m in sorted(self._topic(topic).messages.items())
            if m.state != State.STAGED
            and (state is None or m.visible_state(now_us) == state)
            and (due_from_us is None or m.due_us >= due_from_us)
            and (due_to_us is None or m.due_us < due_to_us)
            and (owner is None or m.owner == owner)
        ]

    def count(self, topic: str) -> dict[str, int]:
        where = self._topic(topic)
        counts = dict.fromkeys(("scheduled", "ready", "leased", "dead", "staged"), 0)
        for message in where.messages.values():
            counts[message.visible_state(self.now_us)] += 1
        return counts | {"done": where.done, "cancelled": where.cancelled}

    def forecast(self, topic: str, from_us: int, to_us: int, bucket_us: int) -> dict[int, int]:
        buckets: dict[int, int] = {}
        # Minutes are the finest that a forecast knows: one counts if it begins within the range.
        for message in self._topic(topic).messages.values():
            minute_us = message.due_us // MINUTE_US * MINUTE_US
            if message.state == State.SCHEDULED and from_us <= minute_us < to_us:
                start_us = minute_us - (minute_us - from_us) % bucket_us
                buckets[start_us] = buckets.get(start_us, 0) + 1
        return buckets

    # What several commands share

    def _topic(self, name: str) -> Topic:
        if name not in self.topics:
            raise NotFound("there is no such topic")
        return self.topics[name]

    def _moments(self, when: When, count: int) -> list[int]:
        kind, values = when or ("delay", 0)
        each = [values] * count if isinstance(values, int) else list(values)
        if len(each) != count:
            raise InvalidArgument("a moment for each row", field="due")
        return [self.now_us + value if kind == "delay" else value for value in each]

    def _leased(self, topic: Topic) -> Iterator[Message]:
        return iter([m for m in topic.messages.values() if m.state == State.LEASED])

    def _leave(self, topic: Topic, session: int) -> None:
        topic.waiting = [w for w in topic.waiting if w[0] != session]
        topic.sessions = {c: s for c, s in topic.sessions.items() if s != session}

    def _renew(self, message: Message) -> None:
        """A heartbeat never shortens a lease, and never carries one beyond the longest hold."""
        renewed = min(self.tick + message.length_us, message.hold_tick)
        message.until_tick = max(message.until_tick, renewed)

    def _give_back(self, message: Message, due_us: int) -> None:
        message.state, message.due_us = State.SCHEDULED, due_us
        message.consumer, message.token = "", 0

    def _fail(self, topic: Topic, message: Message, reason: str, due_us: int) -> bool:
        """An attempt failed: again later, or dead if it was the last one (True)."""
        limit = topic.settings.max_attempts
        if limit and message.attempts >= limit:
            self._die(message, reason)
            return True
        self._give_back(message, due_us)
        return False

    def _die(self, message: Message, reason: str) -> None:
        self._give_back(message, message.due_us)
        message.state, message.reason = State.DEAD, reason

    def _end(self, topic: Topic, message: Message, how: Outcome) -> None:
        del topic.messages[message.id]
        topic.ended[message.id] = (how, self.now_us)
        topic.done += how == Outcome.DONE
        topic.cancelled += how == Outcome.CANCELLED

    def _told(self, status: Outcome, message: Message) -> Answer:
        if message.state == State.STAGED:
            return Answer(status, message.id, message.version, 0, "publish")
        until_us = self.now_us + message.until_tick - self.tick
        return Answer(status, message.id, message.version, until_us, message.consumer)

    def _why_not(self, topic: Topic, message_id: int, by_key: bool) -> Answer:
        """Why a message that is not scheduled can't be changed."""
        message = topic.messages.get(message_id)
        if message is not None and message.state == State.LEASED:
            return self._told(Outcome.LEASED, message)
        if message is not None and message.state == State.DEAD:
            return Answer(Outcome.DEAD, message_id, message.version)
        if message is not None:
            published = any(
                stage.published and message_id in stage.ids
                for stage in self.stages.values()
                if stage.topic == topic.name
            )
            if published:
                return self._told(Outcome.LEASED, message)
            return Answer(Outcome.NOT_FOUND, message_id, message.version)
        how, at_us = topic.ended.get(message_id, (None, 0))
        if how is not None and at_us >= self.now_us - topic.settings.outcome_age_us:
            return Answer(how, message_id, 0, at_us)
        if by_key:
            return Answer(Outcome.NOT_FOUND)
        given = topic.was_given(message_id)
        return Answer(Outcome.GONE if given else Outcome.NOT_FOUND, message_id)


def route(key: str, partitions: int) -> int:
    """The partition of a key: fixed by the protocol, so the model asks the same function."""
    return int(partitions_of(pa.array([key], pa.string()), partitions)[0])


def as_asked(name: str, arguments: dict[str, Any], answer: Answer) -> bool:
    """Whether a row of a transaction came out as its sender asked."""
    if arguments.get("on_conflict") == OnConflict.KEEP and not answer.sent_before:
        return answer.status in (Outcome.OK, Outcome.DUPLICATE)
    return answer.status == Outcome.OK


def _require(good: bool, message: str) -> None:
    if not good:
        raise Broken(message)
