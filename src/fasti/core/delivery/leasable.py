"""Where messages are leased from, as the lease engine sees it.

A `Leasable` is a timeline's or priority topic's partitions, or a group's places in the partitions of
a log. Everything that is done under a lease (verbs.py) is decided once, for all of them, in terms of
what stands here. The sequencer's thread only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from typing import Self

    from fasti.core.replies import Reply
    from fasti.core.work import Work

Int64s = NDArray[np.int64]
UInt8s = NDArray[np.uint8]
Rows = NDArray[np.intp] | slice


class LeasedRows(Protocol):
    """Rows of a command that fall into one partition. What is decided of them is one event each."""

    # Which rows of the command they are.
    rows: Rows

    def __len__(self) -> int: ...

    def only(self, good: NDArray[np.intp] | NDArray[np.bool_], count: int) -> Self:
        """Of these rows some. `count` is how many the command has."""
        ...

    def in_order(self, count: int) -> Self:
        """The same rows in the order in which an event about many of them is smallest."""
        ...

    def ids(self) -> Int64s:
        """The id of each."""
        ...

    def attempts(self) -> NDArray[np.uint16]:
        """How often each was handed out."""
        ...

    def due_again(self, work: Work) -> Int64s:
        """When each is due if it is given back for no reason of its own."""
        ...

    # Judging

    def judge(self, work: Work, tokens: Int64s) -> UInt8s:
        """Which rows are leased under the token that is shown; why not, for the others."""
        ...

    def judge_held(self, work: Work) -> UInt8s:
        """Which rows are leased, under any token; why not, for the others."""
        ...

    def explain(self, work: Work, reply: Reply) -> None:
        """Adds versions, who has the leased ones until when, and when the others ended."""
        ...

    def note_versions(self, reply: Reply) -> None:
        """After something was decided: enters the versions that the rows have now."""
        ...

    # Deciding

    def without_lapsed(self, work: Work, count: int) -> Self:
        """Of rows that come back, those that do: the others were over, and are dead now."""
        ...

    def ack(self, work: Work, started: Int64s) -> None: ...

    def extend(self, work: Work, length_us: int) -> None: ...

    def release(self, work: Work, due: Int64s, started: Int64s) -> None: ...

    def nack(self, work: Work, reason: str, due: Int64s, started: Int64s) -> None: ...

    def die(self, work: Work, reason: str, started: Int64s, exhausted: bool) -> None: ...

    def expire(self, work: Work) -> None:
        """Their leases ran out."""
        ...

    def give_back_unopened(self, work: Work, reasons: NDArray[np.int32]) -> None:
        """Their leases ended at a silent consumer; `reasons` are the last ones before that."""
        ...


class Leasable(Protocol):
    """A topic, or a group of a log."""

    def locate(self, ids: Int64s, reply: Reply) -> Iterable[LeasedRows]:
        """The rows that ids name, by partition. Fills in ids; strangers are `not_found`."""
        ...

    def held(self, work: Work, consumer: str) -> Int64s:
        """The slots of the leases that a consumer has."""
        ...

    def renew(self, work: Work, consumer: str) -> None:
        """Renews all leases of a consumer, by one event."""
        ...
