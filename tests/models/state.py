"""What the naive model knows: messages, topics, producers and stages, and rules that all share.

See timeline.py. Plain objects: look at them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fasti.errors import InvalidArgument, NotFound
from fasti.model import (
    Outcome,
    State,
    TopicSettings,
    make_id,
    partition_of,
    sequence_of,
)


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
    # In priority topics; 0 comes first.
    priority: int = 0
    # Why it is dead, or why it last came back.
    reason: str = ""
    # By when it must be handed out; 0: no matter.
    expires_us: int = 0
    # When it died, if it is dead.
    died_us: int = 0
    # While leased. The ticks say when the lease ends and how far heartbeats can carry it.
    consumer: str = ""
    token: int = 0
    leased_us: int = 0
    length_us: int = 0
    until_tick: int = 0
    hold_tick: int = 0
    # What is known of the holder since it got the message: nothing, that it lives, that it is silent.
    sign: str = ""

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
    paused: bool = False
    # Sessions that wait, in order: (session, consumer, credit). And who has which name.
    waiting: list[tuple[int, str, int]] = field(default_factory=list)
    sessions: dict[str, int] = field(default_factory=dict)
    # Sessions that get nothing until they are heard; and of those that let leases run out, how many
    # messages they may hold and how many more they may take.
    held_back: set[int] = field(default_factory=set)
    doubts: dict[int, tuple[int, int]] = field(default_factory=dict)

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
# ("at", moments) or ("after", lengths from the due time); 0: never.
Expires = tuple[str, Sequence[int]] | None


class Books:
    """Everything that a shard holds, and what becomes of one message at a time."""

    def __init__(self, landed_per_step: int = 16_384) -> None:
        self.topics: dict[str, Topic] = {}
        self.producers: dict[str, Producer] = {}
        self.stages: dict[str, Stage] = {}
        self.now_us = 0
        self.tick = 0
        self.landed_per_step = landed_per_step

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

    def _expiry(self, expires: Expires, dues: Sequence[int]) -> list[int]:
        if expires is None:
            return [0] * len(dues)
        kind, values = expires
        if kind == "at":
            return list(values)
        return [due + after if after else 0 for due, after in zip(dues, values, strict=True)]

    def _leased(self, topic: Topic) -> Iterator[Message]:
        return iter([m for m in topic.messages.values() if m.state == State.LEASED])

    def _leave(self, topic: Topic, session: int) -> None:
        topic.waiting = [w for w in topic.waiting if w[0] != session]
        topic.sessions = {c: s for c, s in topic.sessions.items() if s != session}
        topic.held_back.discard(session)
        topic.doubts.pop(session, None)

    def _renew(self, message: Message) -> None:
        """A heartbeat never shortens a lease, and never carries one beyond the longest hold."""
        renewed = min(self.tick + message.length_us, message.hold_tick)
        message.until_tick = max(message.until_tick, renewed)
        message.sign = "alive"

    def _give_back(self, message: Message, due_us: int) -> None:
        message.state, message.due_us = State.SCHEDULED, due_us
        message.consumer, message.token = "", 0

    def _is_over(self, message: Message) -> bool:
        """Whether it has expired."""
        return 0 < message.expires_us <= self.now_us

    def _lapse(self, message: Message) -> bool:
        """If it has expired it is dead instead of coming back (True)."""
        if self._is_over(message):
            self._die(message, "expired")
            return True
        return False

    def _fail(self, topic: Topic, message: Message, reason: str, due_us: int) -> bool:
        """An attempt failed: again later, or dead if it was the last one (True)."""
        if self._lapse(message):
            return True
        limit = topic.settings.max_attempts
        if limit and message.attempts >= limit:
            self._die(message, reason)
            return True
        self._give_back(message, due_us)
        message.reason = reason
        return False

    def _die(self, message: Message, reason: str) -> None:
        self._give_back(message, message.due_us)
        message.state, message.reason = State.DEAD, reason
        message.died_us, message.expires_us = self.now_us, 0

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
