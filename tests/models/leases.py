"""The naive model's leases: who waits, what may be handed out, and what is done under a lease.

See timeline.py. Which waiting session gets which of the messages that may go, and under what token,
the model is told (`handed_out`) and checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fasti.core.delivery.retry import retry_delays
from fasti.core.delivery.silence import again
from fasti.errors import Fenced, InvalidArgument
from fasti.model import Outcome, State, partition_of
from tests.models.state import Answer, Books, Broken, Message, Topic, When


class Leases(Books):
    """The part of the model that is about consumers."""

    def lease(self, topic: str, session: int, consumer: str, count: int) -> list[Message]:
        """A session waits for `count` more. Returns the leases that a new session gets back."""
        where = self._topic(topic)
        resumed = []
        if any(its == session and name != consumer for its, name, _ in where.waiting):
            raise InvalidArgument("a session waits under one name", field="consumer")
        before = where.sessions.get(consumer)
        if before is not None and before > session:
            raise Fenced("a newer session has the name")
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
            if count:
                where.waiting.append((session, consumer, count))
        if session in where.doubts:
            limit = where.doubts[session][0]
            where.doubts[session] = limit, max(0, limit - self._held(where, consumer))
        return resumed

    def _held(self, topic: Topic, consumer: str) -> int:
        return sum(message.consumer == consumer for message in self._leased(topic))

    def _run_out(self, topic: Topic, message: Message) -> None:
        """A lease ended: an attempt, unless the holder was silent since it got the message."""
        if message.sign != "silent":
            self._fail(topic, message, "the lease expired", message.due_us)
        elif not self._lapse(message):
            message.attempts -= 1
            message.version += 1
            message.reason = again(message.reason)
            self._give_back(message, message.due_us)

    def _doubt(self, topic: Topic, consumer: str, ended: int) -> None:
        """So many leases of a consumer ran out: its session may hold half of what it did."""
        session = topic.sessions.get(consumer)
        if session is not None:
            held = self._held(topic, consumer)
            before = topic.doubts[session][0] if session in topic.doubts else held + ended
            limit = max(1, before // 2)
            topic.doubts[session] = limit, max(0, limit - held)

    def unheard(
        self, topic: str, session: int, consumer: str, after_token: int, hold_back: bool
    ) -> int:
        """A session's peer is silent since the lease of that token."""
        where = self._topic(topic)
        if where.sessions.get(consumer) != session:
            return 0
        if hold_back:
            where.held_back.add(session)
        silent = [
            message
            for message in self._leased(where)
            if message.consumer == consumer and message.token > after_token and not message.sign
        ]
        for message in silent:
            message.sign = "silent"
        return len(silent)

    def heard(self, topic: str, session: int, consumer: str, finished: bool) -> None:
        """A session's peer is there."""
        where = self._topic(topic)
        if where.sessions.get(consumer) != session:
            return
        where.held_back.discard(session)
        if finished:
            where.doubts.pop(session, None)
        for message in self._leased(where):
            if message.consumer == consumer:
                message.sign = "alive"

    def can_take(self, topic: str, session: int) -> int:
        """How many messages may go to a session now."""
        where = self.topics[topic]
        if session in where.held_back:
            return 0
        credit = self.credit(topic, session)
        return min(credit, where.doubts[session][1]) if session in where.doubts else credit

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

    def order(self, topic: str, message: Message, floor_us: int = 0) -> tuple[int, ...]:
        """In what order messages of a partition are handed out: the smaller first.

        Without a starvation guard, a priority topic counts due times from `floor_us` on.
        """
        settings = self.topics[topic].settings
        if settings.kind != "priority":
            return message.due_us, message.id
        if message.due_us > self.now_us:
            # Only near: after all that are due.
            return 1, message.due_us, message.id
        if settings.age_step_us:
            return 0, message.due_us + message.priority * settings.age_step_us, message.id
        return 0, message.priority, max(message.due_us, floor_us), message.id

    def available(self, topic: str, partition: int, floor_us: int = 0) -> list[Message]:
        """What may be handed out now from a partition, in order."""
        where = self.topics[topic]
        if where.paused:
            return []
        limit_us = self.now_us + where.settings.lookahead_us
        return sorted(
            (
                m
                for m in where.messages.values()
                if m.state == State.SCHEDULED
                and m.due_us <= limit_us
                and not self._is_over(m)
                and partition_of(m.id) == partition
            ),
            key=lambda m: self.order(topic, m, floor_us),
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
        floor_us: int = 0,
    ) -> None:
        """Checks and takes note that the engine leased these, in this order, of one partition.

        What is due at or after `loaded_until_us` may not be in memory yet: it can be overtaken,
        but not in a priority topic once it is due.
        """
        where = self.topics[topic]
        credit, most = self.credit(topic, session), self.can_take(topic, session)
        _require(0 < len(ids) <= most, f"{len(ids)} messages for a credit of {credit}, {most}")
        if session in where.doubts:
            trusted = [its for its, _, _ in where.waiting if its not in where.doubts]
            before = [its for its in trusted if self.can_take(topic, its)]
            _require(not before, f"{session} let leases run out, and {before} wait")
            limit, left = where.doubts[session]
            where.doubts[session] = limit, left - len(ids)
        ready = self.available(topic, partition_of(ids[0]), floor_us)
        wanted = set(ids)
        _require(len(wanted) == len(ids), "a message is handed out twice at once")
        strangers = wanted - {m.id for m in ready}
        _require(not strangers, f"{strangers} are not to be handed out now")
        _require([m.id for m in ready if m.id in wanted] == list(ids), "out of order")
        place = [m.id for m in ready].index(ids[-1])
        passed = [m for m in ready[:place] if m.id not in wanted]
        if where.settings.kind == "priority":
            loaded_until_us = max(loaded_until_us, self.now_us + 1)
        _require(all(m.due_us >= loaded_until_us for m in passed), f"passed over {passed}")
        consumer = next(name for its, name, _ in where.waiting if its == session)
        for message_id in ids:
            message = where.messages[message_id]
            start = self.tick + max(0, message.due_us - self.now_us)
            message.state, message.token, message.consumer = State.LEASED, token, consumer
            message.attempts += 1
            message.sign = ""
            message.leased_us = self.now_us
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
            message.sign = "alive"

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
            if self._lapse(message):
                return
            message.attempts -= 1
            self._give_back(message, dues[row])
            message.version += 1

        return self._under_lease(topic, ids, tokens, do)

    def release_leases(
        self, topic: str, consumer: str = "", ids: Sequence[int] | None = None
    ) -> list[Answer]:
        """Without tokens: at the due time that each had, the attempt not counted."""
        where = self._topic(topic)
        if ids is None:
            ids = [m.id for m in self._leased(where) if m.consumer == consumer]
        answers: list[Answer] = []
        goods: list[tuple[int, Message]] = []
        for row, message_id in enumerate(ids):
            message = where.messages.get(message_id)
            if message is not None and message.state == State.LEASED:
                answers.append(Answer(Outcome.OK, message_id, message.version))
                goods.append((row, message))
            elif message is not None and message.state == State.SCHEDULED:
                answers.append(Answer(Outcome.CONFLICT, message_id, message.version))
            else:
                answers.append(self._why_not(where, message_id, by_key=False))
        for row, message in self._each_once(goods, answers):
            if self._lapse(message):
                continue
            message.attempts -= 1
            self._give_back(message, message.due_us)
            message.version += 1
            answers[row].version = message.version
        return answers

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


def _require(good: bool, message: str) -> None:
    if not good:
        raise Broken(message)
