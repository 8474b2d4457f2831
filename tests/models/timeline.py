"""A naive model of the engine: what a broker promises, in dicts and lists.

Every rule of timeline topics stands here once more, a message at a time and without any index, so
that one can see at a glance that it is right. Property tests give the same commands to the engine
and to this model and compare every answer.

The model decides everything but three things, which it is told afterwards because the engine may
choose them freely: the partition of messages without a key (`produce(partition=...)`), which
waiting session gets which of the messages that are due, and the token of a lease (`handed_out`
checks that the choice was allowed).

The order within a step is the engine's: `begin_step` lets leases expire, then come the commands,
then `land` lets published stages land, then waiting consumers are served.

What it holds stands in state.py, leases in leases.py, all other commands here. A refused
command raises the same `FastiError` as the engine and changes nothing. One thread only.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

from xxhash import xxh64_intdigest

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
    sequence_of,
)
from tests.models.leases import Leases
from tests.models.state import Answer, Expires, Message, Producer, Stage, Topic, When

RECEIPTS_KEPT = 8


class Model(Leases):
    """The whole shard. Attributes are plain: look at them."""

    # Time

    def begin_step(self, now_us: int, tick: int) -> None:
        """Time goes on (the wall never back) and leases run out."""
        self.now_us, self.tick = max(now_us, self.now_us), tick
        for topic in self.topics.values():
            ended = [m for m in self._leased(topic) if m.until_tick <= tick]
            holders = Counter(message.consumer for message in ended)
            for message in ended:
                self._run_out(topic, message)
            for consumer, count in sorted(holders.items()):
                self._doubt(topic, consumer, count)
            for message in topic.messages.values():
                if message.state == State.SCHEDULED:
                    self._lapse(message)

    def land(self) -> None:
        """Published stages land, a bounded number of rows a step; old ones are dropped."""
        budget = self.landed_per_step
        for name, stage in list(self.stages.items()):
            if stage.published and budget > 0:
                budget -= self._land(name, stage, budget)
        if budget <= 0:
            return
        for stage in self.stages.values():
            age_us = self.topics[stage.topic].settings.stage_age_us
            expired = stage.opened_at_us + age_us <= self.now_us
            if expired and not stage.published:
                stage.dropping = True
        for name, stage in list(self.stages.items()):
            if stage.dropping and budget > 0:
                budget -= self._drop(name, stage, budget)

    def restart(self, tick: int, last_at_us: int) -> None:
        """The process died: waiting sessions are forgotten, leases run their full length anew.

        That of a message sent ahead runs from its due time, as the last event's time tells it.
        """
        self.tick = tick
        for topic in self.topics.values():
            topic.waiting.clear()
            topic.sessions.clear()
            topic.held_back.clear()
            topic.doubts.clear()
            for message in self._leased(topic):
                message.sign = ""
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
        for fixed in ("kind", "partitions", "age_step_us"):
            if getattr(settings, fixed) != getattr(topic.settings, fixed):
                raise InvalidArgument("can't change", field=fixed)
        topic.settings = settings

    def pause_topic(self, name: str, paused: bool) -> bool:
        topic = self._topic(name)
        changed, topic.paused = topic.paused != paused, paused
        return changed

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
        priorities: Sequence[int] | None = None,
        expires: Expires = None,
    ) -> list[Answer]:
        """Rows come one after another. `partition` is where those without a key went."""
        if atomic:
            command = {k: v for k, v in locals().items() if k not in ("self", "atomic")}
            happened, answers_of, error = self.transaction([("produce", command)])
            if error is not None:
                raise error
            if not happened and producer and not answers_of[0][0].sent_before:
                known_until_us = self.now_us + self._topic(topic).settings.producer_age_us
                self._advance_producer(producer, producer_sequence, known_until_us, answers_of[0])
            return answers_of[0]
        where = self._topic(topic)
        dues = self._moments(when, len(payloads))
        ends = self._expiry(expires, dues)
        self._check_priorities(where, priorities)
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
            new.priority = priorities[row] if priorities else 0
            new.expires_us = ends[row]
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
        holder.priority, holder.reason = new.priority, ""
        holder.expires_us = new.expires_us
        holder.version += 1
        return Answer(Outcome.OK, holder.id, holder.version)

    def _check_priorities(self, topic: Topic, priorities: Sequence[int] | None) -> None:
        if priorities is not None and topic.settings.kind != "priority":
            raise InvalidArgument("its messages have no priority", field="priority")

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
            receipt = [Answer(Outcome.DUPLICATE) for _ in range(count)]
        return [Answer(a.status, a.id, a.version, sent_before=True) for a in receipt]

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
        priorities: Sequence[int] | None = None,
    ) -> list[Answer]:
        where = self._topic(topic)
        self._check_priorities(where, priorities)

        def do(row: int, message: Message) -> None:
            message.payload = payloads[row]
            if priorities is not None:
                message.priority = priorities[row]

        return self._change(where, ids, keys, versions, owner, do)

    def reprioritise(
        self,
        topic: str,
        priorities: Sequence[int],
        ids: Sequence[int] | None = None,
        keys: Sequence[str] | None = None,
        versions: Sequence[int] | int = 0,
        owner: str = "",
    ) -> list[Answer]:
        where = self._topic(topic)
        self._check_priorities(where, priorities)

        def do(row: int, message: Message) -> None:
            message.priority = priorities[row]

        return self._change(where, ids, keys, versions, owner, do)

    def move(
        self,
        topic: str,
        when: When,
        ids: Sequence[int] | None = None,
        keys: Sequence[str] | None = None,
        versions: Sequence[int] | int = 0,
        owner: str = "",
        expires: Expires = None,
    ) -> list[Answer]:
        where = self._topic(topic)
        dues = self._moments(when, len(ids if ids is not None else keys or ()))
        ends = self._expiry(expires, dues)

        def do(row: int, message: Message) -> None:
            message.due_us = dues[row]
            if expires is not None:
                message.expires_us = ends[row]

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
                message.key = key
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
        its.dropping = True
        return len(its.ids)

    def _drop(self, name: str, stage: Stage, budget: int) -> int:
        dropped, stage.ids = stage.ids[:budget], stage.ids[budget:]
        for message_id in dropped:
            del self.topics[stage.topic].messages[message_id]
        if not stage.ids:
            del self.stages[name]
        return len(dropped)

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
                if answer.status == Outcome.OK and not answer.sent_before:
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


def route(key: str, partitions: int) -> int:
    """The partition of a key, as the protocol has it."""
    return xxh64_intdigest(key.encode()) % partitions


def as_asked(name: str, arguments: dict[str, Any], answer: Answer) -> bool:
    """Whether a row of a transaction came out as its sender asked."""
    if answer.sent_before:
        return False
    if arguments.get("on_conflict") == OnConflict.KEEP:
        return answer.status in (Outcome.OK, Outcome.DUPLICATE)
    return answer.status == Outcome.OK
