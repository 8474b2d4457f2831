"""The dead messages of a topic: reading them, making them live again, removing them, counting them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from fasti.client.bulk import Progress
from fasti.client.dead import DeadOutcomes, each_dead, filters, moved, named
from fasti.client.durations import Duration
from fasti.client.outcomes import Outcome, Outcomes
from fasti.client.target import Target, change_ids
from fasti.client.transport import Header, Transport
from fasti.errors import InvalidArgument

if TYPE_CHECKING:
    from fasti.client.arguments import ArrowTable, Integers, Moment


class DeadLetters:
    """What `Messages` can do with those that failed for good."""

    topic: str
    _transport: Transport

    def dead(
        self,
        *,
        reason: str | None = None,
        key_prefix: str | None = None,
        died_from: Any = None,
        died_to: Any = None,
        after: int | None = None,
        limit: int | None = 1000,
        payload: bool = False,
    ) -> ArrowTable:
        """Those that failed for good, with their `reason` and when they died, `died_us`.

        With a text, those whose reason has it; the other filters, and pages, are those of `list`.
        """
        ticket: Header = {"call": "list", "topic": self.topic, "state": "dead", "payload": payload}
        ticket |= filters(reason=reason, died_from=died_from, died_to=died_to)
        pages = {"key_prefix": key_prefix, "after_id": after, "limit": limit}
        ticket |= {name: value for name, value in pages.items() if value is not None}
        return pa.Table.from_batches(list(self._transport.read(ticket)))

    @overload
    def redrive(
        self,
        id: int,
        *,
        to: None = ...,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: Moment | None = ...,
    ) -> Outcome: ...

    @overload
    def redrive(
        self,
        id: Integers,
        *,
        to: None = ...,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: Moment | None = ...,
    ) -> Outcomes: ...

    @overload
    def redrive(
        self,
        id: int | Integers,
        *,
        to: str,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: Moment | None = ...,
    ) -> DeadOutcomes: ...

    @overload
    def redrive(
        self,
        id: None = ...,
        *,
        to: str | None = ...,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: Moment | None = ...,
        reason: str | None = ...,
        owner: str | None = ...,
        due_from: Moment | None = ...,
        due_to: Moment | None = ...,
        died_from: Moment | None = ...,
        died_to: Moment | None = ...,
        progress: Progress | None = ...,
    ) -> DeadOutcomes: ...

    def redrive(
        self,
        id: int | Integers | None = None,
        *,
        to: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        due: Moment | None = None,
        reason: str | None = None,
        owner: str | None = None,
        due_from: Moment | None = None,
        due_to: Moment | None = None,
        died_from: Moment | None = None,
        died_to: Moment | None = None,
        progress: Progress | None = None,
    ) -> Outcome | Outcomes | DeadOutcomes:
        """Makes dead messages live again, now or later (`delay`, `at`, `due`), with no attempts counted.

            emails.redrive(17).status                             # one: an `Outcome`
            emails.redrive(reason="refused", delay="5m").counts()
            emails.redrive(to="emails-by-hand", progress=lambda done, total: print(done, total))

        Without `id` all dead ones that fit the filters: `reason` is a text that the reason has,
        `died_from` and `died_to` say when they died. With
        `to` they go to another topic, with the headers `fasti-dead-topic`, `fasti-dead-reason` and
        `fasti-dead-attempts`; each is in one topic or in the other, never in both or in none, and one
        whose key is taken stays where it is (`conflict`). For lists and filters the answer has
        `counts()`, `all_ok` and `failed`.
        """
        header = {"topic": self.topic, **moved(to, delay, at, due)}
        chosen = filters(
            reason=reason,
            owner=owner,
            due_from=due_from,
            due_to=due_to,
            died_from=died_from,
            died_to=died_to,
        )
        if id is None:
            return each_dead(self._transport, "redrive_dead", header | chosen, progress)
        self._refuse_filters(chosen)
        if to is None:
            return change_ids(self._transport, "redrive", header, id)
        target = Target(id, None, None)
        ids = target.batch({}).column("id").to_pylist()
        return named(self._transport, "redrive_dead", header, ids)

    @overload
    def purge(self, id: int) -> Outcome: ...

    @overload
    def purge(self, id: Integers) -> Outcomes: ...

    @overload
    def purge(
        self,
        id: None = ...,
        *,
        reason: str | None = ...,
        owner: str | None = ...,
        due_from: Moment | None = ...,
        due_to: Moment | None = ...,
        died_from: Moment | None = ...,
        died_to: Moment | None = ...,
        progress: Progress | None = ...,
    ) -> DeadOutcomes: ...

    def purge(
        self,
        id: int | Integers | None = None,
        *,
        reason: str | None = None,
        owner: str | None = None,
        due_from: Moment | None = None,
        due_to: Moment | None = None,
        died_from: Moment | None = None,
        died_to: Moment | None = None,
        progress: Progress | None = None,
    ) -> Outcome | Outcomes | DeadOutcomes:
        """Removes dead messages for good; without `id` all that fit the filters of `redrive`."""
        chosen = filters(
            reason=reason,
            owner=owner,
            due_from=due_from,
            due_to=due_to,
            died_from=died_from,
            died_to=died_to,
        )
        header = {"topic": self.topic}
        if id is None:
            return each_dead(self._transport, "purge_dead", header | chosen, progress)
        self._refuse_filters(chosen)
        return change_ids(self._transport, "purge", header, id)

    def dead_counts(
        self,
        *,
        reason: str | None = None,
        owner: str | None = None,
        due_from: Moment | None = None,
        due_to: Moment | None = None,
        died_from: Moment | None = None,
        died_to: Moment | None = None,
    ) -> dict[str, int]:
        """How many are dead of which reason, the most frequent first; a thousand reasons at most."""
        chosen = filters(
            reason=reason,
            owner=owner,
            due_from=due_from,
            due_to=due_to,
            died_from=died_from,
            died_to=died_to,
        )
        header, _ = self._transport.call("count_dead", {"topic": self.topic, **chosen})
        return {name: int(count) for name, count in header["reasons"]}

    def _refuse_filters(self, chosen: Header) -> None:
        if chosen:
            name = min(chosen)
            raise InvalidArgument("messages are named by id or by filters, not both", field=name)
