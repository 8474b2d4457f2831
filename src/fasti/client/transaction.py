"""Transactions: several changes that happen whole or not at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any

import pyarrow as pa

from fasti.client.columns import as_bytes, message_batch
from fasti.client.durations import Duration
from fasti.client.failures import NAMED_MAX
from fasti.client.kv_columns import names_batch, put_batch
from fasti.client.machines.returns import Return, due_again, release_argument
from fasti.client.message import Message, check_reason
from fasti.client.messages import Messages
from fasti.client.outcomes import Outcomes
from fasti.client.producer import checked_partition
from fasti.client.target import Columns, Target
from fasti.client.transport import Header, Transport
from fasti.errors import FastiError, IllegalTransition, InvalidArgument, TransactionAborted

# While a consumer connects again, the new tokens of its leases are waited for, at most so long.
_TOKENS_S = 10.0


class Transaction:
    """Made by `client.transaction()`; for one thread.

        with client.transaction() as tx:
            tx.ack(message)
            tx.send("receipts", b"...", delay="1d")
            tx.cancel("reminders", key="user-7")
        tx.outcomes                                # of each call, in order

    Everything is sent at the end of the block, as one. If a row is not ok nothing happened, and
    `aborted` is raised, which names those rows; messages that were to be acked are still yours. If
    the block raises, nothing is sent.
    """

    def __init__(
        self, transport: Transport, owner: str = "", flush: Callable[[], None] = lambda: None
    ) -> None:
        self._transport = transport
        self._owner = owner
        self._flush = flush
        self._commands: list[Header] = []
        self._parts: list[pa.RecordBatch | Return] = []
        self._messages: list[Message] = []
        self._done = False
        self.outcomes: list[Outcomes] = []

    # Messages in our hands

    def ack(self, message: Message) -> None:
        """Done, if the rest happens."""
        self._return(message, Return("ack", None, []))

    def nack(
        self,
        message: Message,
        reason: str = "",
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        due: int | datetime | None = None,
    ) -> None:
        """Failed; due again after the retry delay, after `delay`, or `at` (`due`)."""
        self._return(message, Return("nack", reason, [], when=due_again(delay, at, due)))

    def reject(self, message: Message, reason: str = "") -> None:
        """Failed for good."""
        self._return(message, Return("reject", reason, []))

    def release(
        self,
        message: Message,
        delay: Duration | None = None,
        *,
        at: datetime | None = None,
        due: int | datetime | None = None,
    ) -> None:
        """Given back: due again at once, after `delay`, or `at` (`due`)."""
        self._return(message, Return("release", release_argument(delay, at, due), []))

    def _return(self, message: Message, returned: Return) -> None:
        if message.finished or any(message.same_as(other) for other in self._messages):
            raise IllegalTransition(f"message {message.id} was finished already")
        if returned.op in ("nack", "reject"):
            check_reason(returned.argument, message.reason_bytes_max)
        returned.segments.append(message.segment)
        self._messages.append(message)
        self._add({**message.place, **returned.fields()}, returned)

    # Messages of any topic

    def send(
        self,
        topic: str,
        payload: bytes,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        due: int | datetime | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        priority: int | None = None,
        subject: str | None = None,
        partition: int | None = None,
        expires: Duration | datetime | None = None,
        on_conflict: str = "reject",
        owner: str | None = None,
    ) -> None:
        """Puts a message; as `Producer.send`, but a `conflict` undoes the transaction."""
        self.send_batch(
            topic,
            [payload],
            at=at,
            due=due,
            delay=delay,
            key=None if key is None else [key],
            headers=headers,
            content_type=content_type,
            priority=None if priority is None else [priority],
            subject=subject,
            partition=partition,
            expires=expires,
            on_conflict=on_conflict,
            owner=owner,
        )

    def send_batch(
        self,
        topic: str,
        payloads: Any,
        *,
        on_conflict: str = "reject",
        owner: str | None = None,
        partition: int | None = None,
        **columns: Any,
    ) -> None:
        """Puts many messages; columns as for `Producer.send_batch`."""
        batch = message_batch(payloads, **columns)
        command: Header = {
            "op": "produce",
            "topic": topic,
            "owner": self._owner if owner is None else owner,
            "on_conflict": on_conflict,
        }
        if partition is not None:
            command["partition"] = checked_partition(partition)
        self._add(command, batch)

    # Entries of key-value topics

    def put(
        self,
        topic: str,
        key: str,
        value: bytes,
        *,
        clustering: str | None = None,
        version: int | None = None,
        ttl: Duration | None = None,
        expires: Any = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> None:
        """Sets a value; as `KeyValues.put`, but a `conflict` undoes the transaction."""
        self.put_many(
            topic,
            [key],
            [as_bytes(value)],
            clustering=clustering,
            version=version,
            ttl=ttl,
            expires=expires,
            headers=headers,
            content_type=content_type,
        )

    def put_many(self, topic: str, keys: Any, values: Any = None, **columns: Any) -> None:
        """Sets many values; arguments as for `KeyValues.put_many`."""
        self._add({"op": "kv_put", "topic": topic}, put_batch(keys, values, **columns))

    def delete(
        self, topic: str, key: str, *, clustering: str | None = None, version: int | None = None
    ) -> None:
        """Removes an entry; if there is none, or it has another version, nothing happens at all."""
        self.delete_many(topic, [key], clustering=clustering, version=version)

    def delete_many(
        self, topic: str, keys: Any, *, clustering: Any = None, version: Any = None
    ) -> None:
        """Removes many; arguments as for `KeyValues.delete_many`."""
        self._add({"op": "kv_delete", "topic": topic}, names_batch(keys, clustering, version))

    # Messages that are there

    def move(self, topic: str, **named: Any) -> None:
        """Moves messages; arguments as for `Messages.move`."""
        self._recorder(topic).move(**named)

    def cancel(self, topic: str, **named: Any) -> None:
        """Cancels messages; arguments as for `Messages.cancel`."""
        self._recorder(topic).cancel(**named)

    def update(self, topic: str, **named: Any) -> None:
        """Gives messages another payload; arguments as for `Messages.update`."""
        self._recorder(topic).update(**named)

    def _recorder(self, topic: str) -> _Recorder:
        return _Recorder(self._transport, topic, self._owner, self._add)

    def _add(self, command: Header, part: pa.RecordBatch | Return) -> None:
        if self._done:
            raise IllegalTransition("the transaction is over")
        self._commands.append(command)
        self._parts.append(part)

    # The end

    def commit(self) -> list[Outcomes]:
        """Sends it all; called at the end of the block.

        Raises `aborted` when a row was not ok, what refused a command otherwise, and `unknown` when
        it can't be told whether it happened.
        """
        if self._done:
            raise IllegalTransition("the transaction is over")
        self._done = True
        if not self._commands:
            return []
        self._flush()
        tokens = self._tokens()
        while not self._carried_out():
            # Nothing has happened. If leases got new tokens meanwhile, that may be why.
            before, tokens = tokens, self._tokens()
            if tokens == before:
                raise self._aborted()
        for message in self._messages:
            message.finished_elsewhere()
        return self.outcomes

    def _carried_out(self) -> bool:
        parts = [part.batch() if isinstance(part, Return) else part for part in self._parts]
        header, _ = self._transport.call("transaction", {"commands": self._commands}, parts)
        self.outcomes = [Outcomes.of_reply(reply) for reply in header["outcomes"]]
        return bool(header["committed"])

    def _tokens(self) -> list[int]:
        """Leases get new tokens when the consumer has connected again."""
        until = time.monotonic() + _TOKENS_S
        return [
            message.known_token(max(0.0, until - time.monotonic())) for message in self._messages
        ]

    def _aborted(self) -> FastiError:
        failures = [
            {
                "command": number,
                "operation": self._commands[number]["op"],
                "topic": self._commands[number]["topic"],
                "row": row,
                **outcomes[row].to_dict(),
            }
            for number, outcomes in enumerate(self.outcomes)
            for row in outcomes.failed.tolist()
            if outcomes[row].status != "aborted"
        ][:NAMED_MAX]
        first = failures[0] if failures else {"status": "aborted"}
        return TransactionAborted(
            f"the transaction did not happen: {first.get('operation', 'a command')} on "
            f"{first.get('topic', 'a topic')!r} came out as {first['status']}",
            failures=failures,
        )

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None and not self._done:
            self.commit()
        self._done = True


class _Recorder(Messages):
    """Writes down what would be called, for the end of the block."""

    def __init__(
        self,
        transport: Transport,
        topic: str,
        owner: str,
        add: Callable[[Header, pa.RecordBatch], None],
    ) -> None:
        super().__init__(transport, topic, owner)
        self._add = add

    def _change(self, action: str, target: Target, columns: Columns, dry_run: bool = False) -> Any:
        if dry_run:
            raise InvalidArgument("a transaction has no dry run", field="dry_run")
        command = {"op": action, "topic": self.topic, "owner": self.owner}
        self._add(command, target.batch(columns))
