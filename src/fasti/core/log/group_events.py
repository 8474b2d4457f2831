"""What happens in a log's consumer groups. Offsets that follow one another are kept as a range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fasti.core.events import Event, Int64s


@dataclass(slots=True)
class GroupMade(Event):
    """A group has its number and where it begins in each partition."""

    code: ClassVar[int] = 70
    topic: int
    group: str
    number: int
    ordered: int
    offsets: Int64s


@dataclass(slots=True)
class GroupDropped(Event):
    """A group is gone, with its leases."""

    code: ClassVar[int] = 71
    topic: int
    number: int


@dataclass(slots=True)
class GroupLeased(Event):
    """Handed to a consumer of the group under a token; each row's attempts went up by one."""

    code: ClassVar[int] = 72
    topic: int
    partition: int
    group: int
    token: int
    consumer: str
    length_us: int
    offset: Int64s


@dataclass(slots=True)
class GroupResumed(Event):
    """A consumer came back: its leases go on under a new token."""

    code: ClassVar[int] = 73
    topic: int
    partition: int
    group: int
    token: int
    offset: Int64s


@dataclass(slots=True)
class GroupExtended(Event):
    """Leases run longer."""

    code: ClassVar[int] = 74
    topic: int
    partition: int
    group: int
    length_us: int
    offset: Int64s


@dataclass(slots=True)
class GroupRenewed(Event):
    """A heartbeat renewed all leases of a consumer in the group."""

    code: ClassVar[int] = 75
    topic: int
    group: int
    consumer: str


@dataclass(slots=True)
class GroupAcked(Event):
    """Done, for this group."""

    code: ClassVar[int] = 76
    topic: int
    partition: int
    group: int
    offset: Int64s
    started_us: Int64s


@dataclass(slots=True)
class GroupReturned(Event):
    """Given back (verb: RELEASE, NACK or EXPIRE of lifecycle.Verb): again at `due_us`."""

    code: ClassVar[int] = 77
    topic: int
    partition: int
    group: int
    verb: int
    reason: str
    offset: Int64s
    due_us: Int64s
    started_us: Int64s


@dataclass(slots=True)
class GroupDied(Event):
    """Dead for this group; it counts as acked."""

    code: ClassVar[int] = 78
    topic: int
    partition: int
    group: int
    reason: str
    exhausted: int
    offset: Int64s
    started_us: Int64s


@dataclass(slots=True)
class GroupSet(Event):
    """The group goes on from here: its leases on the partition end, its window is clear."""

    code: ClassVar[int] = 79
    topic: int
    partition: int
    group: int
    offset: int


@dataclass(slots=True)
class GroupRevived(Event):
    """Dead rows are handed out again."""

    code: ClassVar[int] = 69
    topic: int
    partition: int
    group: int
    offset: Int64s
    due_us: Int64s


@dataclass(slots=True)
class GroupPurged(Event):
    """Dead rows are forgotten."""

    code: ClassVar[int] = 68
    topic: int
    partition: int
    group: int
    offset: Int64s
