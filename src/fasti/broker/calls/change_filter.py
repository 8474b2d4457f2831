"""Of the change feed the rows of some messages: those with an id, and those that have had a key.

Only some rows of a message carry its key (produced, replaced, updated, appended); the others tell its
id. So a reader that follows a key remembers the ids it has met under it. A message from before the
place where reading begins is known if it lives: the engine finds it by its key. A reader that lost
its connection and goes on says which it has met before. One reader's thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fasti.broker.calls.listed import NAMED_MAX
from fasti.core.commands import Get, Target
from fasti.core.keys import Keys
from fasti.core.traits import KINDS
from fasti.errors import InvalidArgument
from fasti.model import Outcome

if TYPE_CHECKING:
    from fasti.broker.service import Service
    from fasti.broker.shard import Shard

Header = dict[str, Any]

# So many messages of one key are followed, the latest: in a log any number of rows may have it.
_FOLLOWED_MAX = 10_000
# So many topics are asked for a key at once.
_ASKED_MAX = 500
# What must be known of a row to tell whether it is meant.
NEEDED = ("op", "topic", "id", "key")


class ChangeFilter:
    """Which rows are meant: `ids` in any topic, or messages that have, or had, the key."""

    def __init__(self, ids: list[int], key: str | None, ops: frozenset[str] | None) -> None:
        self._ids = pa.array(ids, pa.int64())
        self._key = key
        self._ops = None if ops is None else pa.array(sorted(ops), pa.string())
        # As an ordered set: the first are forgotten first.
        self._followed: dict[tuple[str, int], None] = {}

    def apply(self, batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
        """The rows of a page that are meant, by these columns."""
        keep = pc.is_in(batch.column("id"), value_set=self._ids).to_numpy(zero_copy_only=False)
        if self._key is not None:
            keep = keep | self._of_key(batch)
        if self._ops is not None:
            keep = keep & pc.is_in(batch.column("op"), value_set=self._ops).to_numpy(
                zero_copy_only=False
            )
        return batch.select(names).filter(pa.array(keep))

    def _of_key(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        found = pc.equal(batch.column("key"), self._key).fill_null(False)
        keep: NDArray[np.bool_] = found.to_numpy(zero_copy_only=False).copy()
        rows = pa.array(np.flatnonzero(keep))
        topics, ids = (batch.column(name).take(rows).to_pylist() for name in ("topic", "id"))
        self.follow(zip(topics, ids, strict=True))
        for topic, followed in self._by_topic().items():
            here = pc.and_(
                pc.equal(batch.column("topic"), topic),
                pc.is_in(batch.column("id"), value_set=pa.array(followed, pa.int64())),
            )
            keep |= here.fill_null(False).to_numpy(zero_copy_only=False)
        return keep

    def _by_topic(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for topic, number in self._followed:
            found.setdefault(topic, []).append(number)
        return found

    def follow(self, messages: Iterable[tuple[str, int]]) -> None:
        """More messages that have the key."""
        self._followed.update(dict.fromkeys(messages))
        for oldest in list(self._followed)[: max(0, len(self._followed) - _FOLLOWED_MAX)]:
            del self._followed[oldest]


def change_filter(
    service: Service, fields: Header, topics: list[str], ops: frozenset[str] | None
) -> ChangeFilter | None:
    """What a reader asks for; None if it wants the rows of all messages."""
    ids, key = _ids(fields), fields["key"]
    if not ids and not key:
        return None
    made = ChangeFilter(ids, key or None, ops)
    if key:
        made.follow(_known(fields))
        made.follow(_living(service, key, topics))
    return made


def _ids(fields: Header) -> list[int]:
    given: list[Any] = fields["ids"]
    if not all(type(each) is int and 0 <= each < 1 << 63 for each in given):
        raise InvalidArgument("'ids' must be a list of ids", field="ids")
    if len(given) > NAMED_MAX:
        raise InvalidArgument("'ids' has too many entries", field="ids", limit=NAMED_MAX)
    return given


def _known(fields: Header) -> list[tuple[str, int]]:
    """What the reader has met before: pairs of topic and id."""
    given: list[Any] = fields["known"]
    if len(given) > NAMED_MAX:
        raise InvalidArgument("'known' has too many entries", field="known", limit=NAMED_MAX)
    for pair in given:
        if not (isinstance(pair, list) and [type(each) for each in pair] == [str, int]):
            raise InvalidArgument("'known' must be a list of pairs of topic and id", field="known")
    return [(topic, number) for topic, number in given if 0 <= number < 1 << 63]


def _living(service: Service, key: str, topics: list[str]) -> list[tuple[str, int]]:
    """The messages that have the key now."""
    names = [
        topic.name
        for topic in service.topics().values()
        if KINDS[topic.settings.kind].is_queue and (not topics or topic.name in topics)
    ]
    names_of: dict[Shard, list[str]] = {}
    for name in names:
        names_of.setdefault(service.placement.shard_of(name), []).append(name)
    living: list[tuple[str, int]] = []
    for shard, here in names_of.items():
        target = Target(keys=Keys(pa.array([key]), shard.store.seed))
        for begin in range(0, len(here), _ASKED_MAX):
            some = here[begin : begin + _ASKED_MAX]
            replies = service.submit(shard, [Get(name, target) for name in some]).result()
            for name, reply in zip(some, replies, strict=True):
                if reply.error is None and reply.status[0] == Outcome.OK:
                    living.append((name, int(reply.ids[0])))
    return living
