"""Reads that may be out of date, and say as of when they are.

Made by `client.messages(topic).stale()` and `client.kv(topic).stale()`; any thread may call. They are the reads of
those, asked for in another way, and nothing else: what a standby can't do is not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar, cast, overload

import pyarrow as pa

from fasti.client.durations import as_datetime, moment_us
from fasti.client.transport import Header, Transport
from fasti.protocol.schemas import AS_OF, STALE

if TYPE_CHECKING:
    from fasti.client.arguments import (
        ArrowBatch,
        ArrowTable,
        Integers,
        MessageMetadata,
        MessageState,
        Moment,
        PendingMessage,
        Texts,
    )
    from fasti.client.kv import Entry, KeyValues
    from fasti.client.messages import Messages
    from fasti.client.topics import Topic
    from fasti.model import Limits

T = TypeVar("T")


class Stale(NamedTuple, Generic[T]):
    """What a stale read gave, and as of when.

        found, as_of = client.messages("emails").stale().get(key="user-7")

    `value` is durable, all of it, and may be behind. `as_of` is the last moment of which the broker that
    answered knew that nothing was missing in it; of several shards, that of the one furthest behind. While
    all is well it follows the beats of the leaders, ten a second.
    """

    value: T
    as_of: datetime

    @property
    def as_of_us(self) -> int:
        """The same in microseconds since 1970."""
        return moment_us(self.as_of, "as_of")


class StaleMessages:
    """The messages of one topic as a broker last knew them, for when that is enough.

        count, as_of = client.messages("emails").stale().count()

    In a cluster a standby answers, or the leader where none does, without asking the NATS servers whether
    it still leads: so reads go on while those have no majority, or the leader is gone. On a single broker
    these are the reads that `Messages` has. One standby never goes back; another may be further behind.
    """

    def __init__(self, transport: Transport, topic: str) -> None:
        self.topic = topic
        self._transport = transport

    @overload
    def get(self, *, id: int, payload: Literal[True] = ...) -> Stale[PendingMessage | None]: ...

    @overload
    def get(self, *, key: str, payload: Literal[True] = ...) -> Stale[PendingMessage | None]: ...

    @overload
    def get(self, *, id: int, payload: bool) -> Stale[MessageMetadata | None]: ...

    @overload
    def get(self, *, key: str, payload: bool) -> Stale[MessageMetadata | None]: ...

    @overload
    def get(
        self, *, id: Integers = ..., key: Texts = ..., payload: bool = ...
    ) -> Stale[ArrowTable]: ...

    def get(
        self,
        *,
        id: int | Integers | None = None,
        key: str | Texts | None = None,
        payload: bool = True,
    ) -> Any:
        """Messages by id or by key, as `Messages.get` gives them.

        Of a leased message a standby doesn't know until when: `lease_until_us` is null.
        """
        reads = _StaleReads(self._transport)
        call: Any = reads.messages(self.topic).get
        return reads.answer(call(id=id, key=key, payload=payload))

    def list(
        self,
        *,
        due_from: Moment | None = None,
        due_to: Moment | None = None,
        state: MessageState | None = None,
        owner: str | None = None,
        key_prefix: str | None = None,
        reason: str | None = None,
        died_from: Moment | None = None,
        died_to: Moment | None = None,
        consumer: str | None = None,
        after: int | None = None,
        limit: int | None = 1000,
        payload: bool = False,
        columns: Sequence[str] | None = None,
    ) -> Stale[ArrowTable]:
        """The messages that fit every filter, as `Messages.list` gives them. Of each shard it is one state."""
        reads = _StaleReads(self._transport)
        table = reads.messages(self.topic).list(
            due_from=due_from,
            due_to=due_to,
            state=state,
            owner=owner,
            key_prefix=key_prefix,
            reason=reason,
            died_from=died_from,
            died_to=died_to,
            consumer=consumer,
            after=after,
            limit=limit,
            payload=payload,
            columns=columns,
        )
        return reads.answer(table.replace_schema_metadata(None))

    def scan(
        self,
        *,
        due_from: Moment | None = None,
        due_to: Moment | None = None,
        state: MessageState | None = None,
        owner: str | None = None,
        key_prefix: str | None = None,
        reason: str | None = None,
        died_from: Moment | None = None,
        died_to: Moment | None = None,
        consumer: str | None = None,
        after: int | None = None,
        limit: int | None = None,
        payload: bool = False,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Stale[ArrowBatch]]:
        """The same in batches, for any number of messages; a batch may be empty."""
        reads = _StaleReads(self._transport)
        batches = reads.messages(self.topic).scan(
            due_from=due_from,
            due_to=due_to,
            state=state,
            owner=owner,
            key_prefix=key_prefix,
            reason=reason,
            died_from=died_from,
            died_to=died_to,
            consumer=consumer,
            after=after,
            limit=limit,
            payload=payload,
            columns=columns,
        )
        for batch in batches:
            yield reads.answer(batch.replace_schema_metadata(None))

    def count(self) -> Stale[dict[str, int]]:
        """How many messages there are by state, as `Messages.count` gives it."""
        reads = _StaleReads(self._transport)
        return reads.answer(reads.messages(self.topic).count())

    def describe(self) -> Stale[Topic]:
        """The topic's settings and counts, as `client.topic` gives them; of any kind of topic."""
        from fasti.client.topics import Topic

        reads = _StaleReads(self._transport)
        header, _ = reads.call("topic", {"topic": self.topic})
        return reads.answer(Topic.of_reply(self.topic, header))

    def __repr__(self) -> str:
        return f"<StaleMessages of {self.topic!r}>"


class StaleKeyValues:
    """The entries of one key-value topic as a broker last knew them: see `StaleMessages`.

    found, as_of = client.kv("profiles").stale().get("user-7")
    """

    def __init__(self, transport: Transport, topic: str, limits: Limits) -> None:
        self.topic = topic
        self._transport, self._limits = transport, limits

    def get(self, key: str, *, clustering: str | None = None) -> Stale[Entry | None]:
        """The entry, or None."""
        reads = _StaleReads(self._transport)
        return reads.answer(self._entries(reads).get(key, clustering=clustering))

    def get_many(
        self, keys: Any, *, clustering: Any = None, values: bool = True
    ) -> Stale[ArrowTable]:
        """Many at once, as `KeyValues.get_many` gives them."""
        reads = _StaleReads(self._transport)
        entries = self._entries(reads)
        return reads.answer(entries.get_many(keys, clustering=clustering, values=values))

    def count(self) -> Stale[int]:
        """How many entries there are."""
        reads = _StaleReads(self._transport)
        return reads.answer(self._entries(reads).count())

    def _entries(self, reads: _StaleReads) -> KeyValues:
        from fasti.client.kv import KeyValues

        return KeyValues(cast(Transport, reads), self.topic, self._limits)

    def __repr__(self) -> str:
        return f"<StaleKeyValues of {self.topic!r}>"


class _StaleReads:
    """The transport of one stale read: asks for it, and keeps as of when the answers are."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._as_of_us: int | None = None

    def messages(self, topic: str) -> Messages:
        """The reads of messages, by this transport."""
        from fasti.client.messages import Messages

        return Messages(cast(Transport, self), topic)

    def answer(self, value: T) -> Stale[T]:
        """As of the earliest of what it is made of."""
        assert self._as_of_us is not None, "something was answered"
        return Stale(value, as_datetime(self._as_of_us))

    def call(
        self,
        action: str,
        header: Header,
        parts: Sequence[pa.RecordBatch] = (),
        timeout: float | None = None,
    ) -> tuple[Header, Sequence[pa.Table]]:
        """As the transport's."""
        reply, tables = self._transport.call(action, {**header, STALE: True}, parts, timeout)
        self._note(int(reply[AS_OF]))
        return reply, tables

    def read(self, ticket: Header) -> Iterator[pa.RecordBatch]:
        """As the transport's."""
        for batch in self._transport.read({**ticket, STALE: True}):
            self._note(int(batch.schema.metadata[AS_OF.encode()]))
            yield batch

    def _note(self, as_of_us: int) -> None:
        known = self._as_of_us
        self._as_of_us = as_of_us if known is None else min(known, as_of_us)
