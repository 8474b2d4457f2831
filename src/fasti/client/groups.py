"""Consumer groups of a log: where they are, making them, setting them elsewhere, their dead.

Made by `client.groups(topic)`; any thread may call.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa

from fasti.client.bulk import Progress
from fasti.client.dead import DeadOutcomes, each_dead, filters, moved
from fasti.client.durations import Duration
from fasti.client.log_place import Start, place_header
from fasti.client.outcomes import Outcome, Outcomes
from fasti.client.target import Target
from fasti.client.transport import Header, Transport
from fasti.errors import InvalidArgument

if TYPE_CHECKING:
    from fasti.client.arguments import ArrowTable, Integers, Moment

# Dead rows are listed and changed by so many at a time.
_PAGE_ROWS = 5_000


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A group's place in one partition, as it was when it was asked for.

    All rows below `committed` are acked or dead; `consumed` is the last that was handed out (−1:
    none); `lag` counts those that are not finished; `behind` those that were dropped before.
    """

    partition: int
    committed: int = 0
    consumed: int = -1
    end: int = 0
    lag: int = 0
    leased: int = 0
    again: int = 0
    dead: int = 0
    window_full: bool = False
    behind: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """A group, as it was when it was asked for."""

    name: str
    ordered: bool = False
    partitions: list[GroupPartition] = field(default_factory=list)

    @classmethod
    def of_reply(cls, header: Header) -> Group:
        """From the protocol's object; fields that we don't know are left out."""
        places = [
            GroupPartition(**{name: partition[name] for name in _PLACE if name in partition})
            for partition in header["partitions"]
        ]
        return cls(header["group"], bool(header.get("ordered")), places)

    @property
    def lag(self) -> int:
        """Rows that it has not finished."""
        return sum(partition.lag for partition in self.partitions)

    @property
    def leased(self) -> int:
        """Rows that its consumers have."""
        return sum(partition.leased for partition in self.partitions)

    @property
    def dead(self) -> int:
        """Rows that failed for good."""
        return sum(partition.dead for partition in self.partitions)

    @property
    def behind(self) -> int:
        """Rows that were dropped before it had finished them."""
        return sum(partition.behind for partition in self.partitions)

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        partitions = [
            {name: getattr(partition, name) for name in _PLACE} for partition in self.partitions
        ]
        return {
            "group": self.name,
            "ordered": self.ordered,
            "lag": self.lag,
            "leased": self.leased,
            "dead": self.dead,
            "behind": self.behind,
            "partitions": partitions,
        }


_PLACE = [column.name for column in fields(GroupPartition)]


class Groups:
    """The groups of one log.

    groups = client.groups("events")
    groups.create("billing", start="latest", ordered=True)
    groups.lag("billing")                          # rows that it has not finished
    groups.reset("billing", to=datetime(2026, 11, 1, tzinfo=UTC))
    groups.dead("billing"); groups.redrive("billing")
    """

    def __init__(self, transport: Transport, topic: str) -> None:
        self.topic = topic
        self._transport = transport

    def list(self) -> builtins.list[Group]:
        """All groups, by name."""
        header, _ = self._transport.call("groups", {"topic": self.topic})
        return [Group.of_reply(group) for group in header["groups"]]

    def describe(self, group: str) -> Group:
        """One group. Raises `not_found`."""
        header, _ = self._transport.call("groups", {"topic": self.topic, "group": group})
        return Group.of_reply(header["groups"][0])

    def lag(self, group: str) -> int:
        """How many rows the group has not finished. Raises `not_found`."""
        return self.describe(group).lag

    def create(self, group: str, *, start: Start = "earliest", ordered: bool = False) -> Group:
        """Makes a group that begins at `start`; a consumer's first lease would at the earliest.

        `start` is `"earliest"`, `"latest"`, an aware datetime, or offsets by partition. With
        `ordered` at most one row of a key is out at a time, in the order of offsets. Raises
        `already_exists`.
        """
        header = {"topic": self.topic, "group": group, "ordered": ordered}
        reply, _ = self._transport.call("create_group", header | place_header(start, None))
        return Group.of_reply(reply["group"])

    def reset(self, group: str, to: Start, *, partition: int | None = None) -> Group:
        """Has the group go on elsewhere: `to` as `start` above, or an offset of one partition.

        What its consumers hold there is theirs no more: their acks answer `stale_lease`.
        """
        header = {"topic": self.topic, "group": group} | place_header(to, partition, "to")
        reply, _ = self._transport.call("reset_group", header)
        return Group.of_reply(reply["group"])

    def delete(self, group: str) -> None:
        """Forgets a group. Raises `not_found`."""
        self._transport.call("delete_group", {"topic": self.topic, "group": group})

    # The dead

    def dead(
        self,
        group: str,
        *,
        reason: str | None = None,
        after: int | None = None,
        limit: int | None = 1000,
        payload: bool = False,
    ) -> ArrowTable:
        """Rows that failed for good in this group, by id, with their `reason` and `attempts`.

        With `reason`, those whose reason has that text; with `after`, those behind that id.
        """
        tables: list[pa.Table] = []
        after_id, left = after or 0, limit
        while True:
            header: Header = {
                "topic": self.topic,
                "group": group,
                "after_id": after_id,
                "limit": _PAGE_ROWS if left is None else min(left, _PAGE_ROWS),
                "payload": payload,
            }
            if reason is not None:
                header["reason"] = reason
            reply, parts = self._transport.call("dead", header)
            tables.append(parts[0])
            after_id = int(reply["next_after_id"])
            if left is not None:
                left -= parts[0].num_rows
            if not after_id or left == 0:
                return pa.concat_tables(tables)

    @overload
    def redrive(
        self,
        group: str,
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
        group: str,
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
        group: str,
        id: None = ...,
        *,
        to: str | None = ...,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: Moment | None = ...,
        reason: str | None = ...,
        progress: Progress | None = ...,
    ) -> DeadOutcomes: ...

    def redrive(
        self,
        group: str,
        id: int | Integers | None = None,
        *,
        to: str | None = None,
        reason: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        due: Moment | None = None,
        progress: Progress | None = None,
    ) -> Outcome | Outcomes | DeadOutcomes:
        """Has the group get dead rows again, now or later, with no attempts counted.

        Without `id` all that are dead, or those with the reason; with `to` they go to another topic
        instead, each with headers that tell of its death. `Outcome` for one, else the answer has
        `counts()` and `all_ok`.
        """
        header: Header = {"topic": self.topic, "group": group, **moved(to, delay, at, due)}
        if id is None:
            header |= filters(reason=reason)
            return each_dead(self._transport, "redrive_dead", header, progress)
        if to is not None:
            raise InvalidArgument("by id, rows stay with their group", field="to")
        return self._each_dead("redrive", header, id)

    @overload
    def purge(self, group: str, id: int) -> Outcome: ...

    @overload
    def purge(self, group: str, id: Integers) -> Outcomes: ...

    @overload
    def purge(
        self,
        group: str,
        id: None = ...,
        *,
        reason: str | None = ...,
        progress: Progress | None = ...,
    ) -> DeadOutcomes: ...

    def purge(
        self,
        group: str,
        id: int | Integers | None = None,
        *,
        reason: str | None = None,
        progress: Progress | None = None,
    ) -> Outcome | Outcomes | DeadOutcomes:
        """Forgets dead rows of the group; the log keeps them. Answers as `redrive`."""
        header = {"topic": self.topic, "group": group}
        if id is None:
            header |= filters(reason=reason)
            return each_dead(self._transport, "purge_dead", header, progress)
        return self._each_dead("purge", header, id)

    def dead_counts(self, group: str, *, reason: str | None = None) -> dict[str, int]:
        """How many rows are dead of which reason, the most frequent first."""
        header = {"topic": self.topic, "group": group, **filters(reason=reason)}
        reply, _ = self._transport.call("count_dead", header)
        return {name: int(count) for name, count in reply["reasons"]}

    def _each_dead(self, action: str, header: Header, id: Any) -> Any:
        target = Target(np.asarray(id) if isinstance(id, builtins.list) else id, None, None)
        batch = target.batch({})
        outcomes = []
        for begin in range(0, batch.num_rows, _PAGE_ROWS):
            reply, _ = self._transport.call(action, header, [batch.slice(begin, _PAGE_ROWS)])
            outcomes.append(Outcomes.of_reply(reply))
        return target.answer(Outcomes.joined(outcomes))

    def __repr__(self) -> str:
        return f"<Groups of {self.topic!r}>"
