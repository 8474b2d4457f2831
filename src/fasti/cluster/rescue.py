"""Where a broker looks for what NATS has lost: caches of brokers, and the other copies of the stream.

- Caches first, its own and those of the other members: they are asked by a plain subject, which disturbs
  nobody. Whoever has it answers, the others are silent.
- Then each server that keeps the stream is made to lead it, those that are not known to be damaged first, and
  asked as its leader. The one that has it leads from then on.

What comes out is for the reader to check: by its checksums and its place in the chain. Any thread.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

from fasti.cluster.damage import DamageBook
from fasti.cluster.local_caches import LocalCaches
from fasti.cluster.names import ShardNames
from fasti.cluster.nats import Answer, NatsConnection, StoredMessage
from fasti.errors import TimedOut, Unavailable

_log = logging.getLogger("fasti.cluster.rescue")

_MEMBERS_S = 0.5
_STEP_DOWN_S = 5.0
_LOOK_S = 0.05
_GET_S = 1.0


def cache_subject(cluster: str) -> str:
    """Where members are asked for what they have on their disks."""
    return f"{cluster}.cache"


class Candidate(NamedTuple):
    """What may be the message that is looked for. One that is ``stored`` comes from a copy of the stream itself;
    caches may also have something of a stream that had its name before.
    """

    data: bytes
    stored: bool


class Rescue:
    """For one shard."""

    def __init__(
        self,
        connection: NatsConnection,
        names: ShardNames,
        book: DamageBook,
        caches: LocalCaches | None = None,
    ) -> None:
        self._connection, self._names, self._caches = connection, names, caches
        self.book = book

    def is_held(self) -> bool:
        """Whether nothing of the shard may be removed now."""
        return self.book.is_held(self._names.streams)

    def packs(self, place: int) -> Iterator[Candidate]:
        """What may be the pack at this place. Raises `Unavailable` if a copy could not be asked."""
        stream = self._names.journal_stream
        self.book.doubt(stream)
        if self._caches is not None:
            own = self._caches.packs(self._names.shard).get(place)
            if own is not None:
                yield Candidate(own, stored=False)
        yield from self._of_members({"place": place})
        yield from self._of_servers(
            stream, lambda: self._connection.get(stream, place, timeout_s=_GET_S)
        )

    def parts(self, space: str, name: str, part: int, is_listed: bool) -> Iterator[Candidate]:
        """What may be this part of a block; servers are asked only if it is known that there was one."""
        stream = self._names.blocks_stream
        if is_listed:
            self.book.doubt(stream)
        if self._caches is not None:
            own = self._caches.blocks(self._names.shard).message(space, name, part)
            if own is not None:
                yield Candidate(own, stored=False)
        yield from self._of_members({"space": space, "name": name, "part": part})
        if is_listed or self.book.is_held([stream]):
            subject = self._names.part_subject(space, name, part)
            yield from self._of_servers(
                stream, lambda: self._connection.get(stream, subject=subject, timeout_s=_GET_S)
            )

    def _of_members(self, what: dict[str, Any]) -> Iterator[Candidate]:
        """The first answer; and if that was not it, those of all who answer within a while."""
        request = json.dumps({"shard": self._names.shard, **what}).encode()
        subject = cache_subject(self._names.cluster)
        for is_last in (_is_any, _is_nobody):
            try:
                answers = self._connection.gather(subject, request, _MEMBERS_S, is_last)
            except (TimedOut, Unavailable):
                return
            for answer in answers:
                if answer.data:
                    yield Candidate(answer.data, stored=False)
            if not answers or _is_nobody(answers[-1], 1):
                return

    def _of_servers(
        self, stream: str, get: Callable[[], StoredMessage | None]
    ) -> Iterator[Candidate]:
        state = self._connection.stream_state(stream)
        if state is None:
            return
        damaged = self.book.damaged_servers(stream)
        unknown: list[str] = []
        for server in sorted(state.followers, key=lambda name: (name in damaged, name)):
            try:
                lead_by(self._connection, stream, server)
                found = get()
            except (TimedOut, Unavailable):
                unknown.append(server)
                continue
            _log.warning("%s is led by %s now, to look for what was lost", stream, server)
            if found is not None:
                yield Candidate(found.data, stored=True)
        if unknown or len(state.followers) + 1 < int(state.config.get("num_replicas", 1)):
            away = ", ".join(unknown) or "one that is away"
            raise Unavailable(f"a copy of {stream} could not be asked: {away}")


def _is_any(answer: Answer, number: int) -> bool:
    return True


def _is_nobody(answer: Answer, number: int) -> bool:
    """The server itself says that nobody listens."""
    return "Status" in answer.headers


def lead_by(connection: NatsConnection, stream: str, server: str) -> None:
    """Has a server lead a stream; returns when it does. Raises `TimedOut`.

    A leader that has just been elected may refuse for a moment, or nobody answer.
    """
    request = json.dumps({"placement": {"preferred": server}}).encode()
    until = time.monotonic() + _STEP_DOWN_S
    while time.monotonic() < until:
        with suppress(TimedOut, Unavailable):
            state = connection.stream_state(stream, _GET_S)
            if state is not None and state.leader == server:
                return
            if state is not None and state.leader:
                connection.ask(f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}", request, _GET_S)
        time.sleep(_LOOK_S)
    raise TimedOut(f"{server} does not lead {stream}")


class CacheAnswers:
    """Gives other members what this one has on its disk. `close` is for one thread."""

    def __init__(self, connection: NatsConnection, cluster: str, caches: LocalCaches) -> None:
        self._connection, self._caches = connection, caches
        self._worker = ThreadPoolExecutor(1, "fasti-cache-answers")
        self._stop = connection.listen(cache_subject(cluster), self._take)

    def _take(self, data: bytes, reply_to: str) -> None:
        """In the thread of the connection, which must not wait."""
        if reply_to:
            self._worker.submit(self._answer, data, reply_to)

    def _answer(self, data: bytes, reply_to: str) -> None:
        with suppress(ValueError, KeyError, TypeError, OSError):
            told = json.loads(data)
            shard = int(told["shard"])
            if not self._caches.knows(shard):
                return
            if "place" in told:
                found = self._caches.packs(shard).get(int(told["place"]))
            else:
                cache = self._caches.blocks(shard)
                found = cache.message(str(told["space"]), str(told["name"]), int(told["part"]))
            if found is not None:
                self._connection.send(reply_to, found)

    def close(self) -> None:
        """Answers nobody any more."""
        self._stop()
        self._worker.shutdown()
