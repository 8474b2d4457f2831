"""Packs in a journal's stream: publish, and read with every checksum compared.

What a replica nearby gives is used if it is whole. A pack that it doesn't have, or has damaged, is read
from the stream's leader, and only what the leader says counts: not there yet (`MISSING`), no longer
there (`TRIMMED`), or damage, where a place between the stream's ends is empty, or has no whole pack. Then it
is looked for elsewhere (`rescue.py`); if nobody has it, it is `Corruption`. Nothing is skipped.

Packs that were read or written lately stay in memory, up to a bound, and more of them on the local disk, where
there is one (`pack_cache.py`). Any thread.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fasti.cluster.names import ShardNames
from fasti.cluster.nats import (
    NatsConnection,
    StoredMessage,
    StreamState,
)
from fasti.cluster.nats_socket import StreamAppends, StreamMessage, StreamReads
from fasti.cluster.pack import Pack, decode_pack
from fasti.cluster.pack_cache import PackCache
from fasti.cluster.rescue import Rescue
from fasti.cluster.server_room import ServerRoom
from fasti.cluster.writer_actions import MISSING, TRIMMED, Absence
from fasti.errors import Corruption, NewerFormat, TimedOut, Unavailable

_log = logging.getLogger("fasti.cluster.journal")

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BATCH_BYTES = 8 << 20
_CACHE_BYTES = 32 << 20
# What a message takes in the stream beside its payload and subject: lengths, headers, a checksum.
_OVERHEAD_BYTES = 100


class PackStream:
    """The stream of one shard's journal."""

    def __init__(
        self,
        connection: NatsConnection,
        names: ShardNames,
        cache_bytes: int = _CACHE_BYTES,
        *,
        kept: PackCache | None = None,
        rescue: Rescue | None = None,
        server_room: ServerRoom | None = None,
    ) -> None:
        """`kept` is the local disk; without `rescue` nothing is looked for elsewhere. `server_room` is told what
        is written.
        """
        self._server_room = server_room
        self.names = names
        self.name = names.journal_stream
        self._connection = connection
        self._kept, self._rescue = kept, rescue
        # The journal's, by what was read last; 0: nothing was.
        self._incarnation = 0
        self._cache: OrderedDict[int, Pack] = OrderedDict()
        self._cached_bytes = 0
        self._cache_bytes_max = cache_bytes
        # What is read ahead must not push out what was asked for.
        self._batch_bytes = min(_BATCH_BYTES, cache_bytes // 4)
        self._lock = threading.Lock()
        self._appends = StreamAppends(connection, self.name)
        self._reads = StreamReads(connection, self.name)

    @staticmethod
    def config(names: ShardNames, replicas: int, bytes_max: int) -> dict[str, Any]:
        """Nothing goes from it but by a purge, and when it is full it refuses."""
        return {
            "name": names.journal_stream,
            "subjects": [names.journal_subject],
            "storage": "file",
            "retention": "limits",
            "discard": "new",
            "num_replicas": replicas,
            "max_bytes": bytes_max,
            "max_msgs": -1,
            "max_age": 0,
            "deny_delete": True,
            "allow_direct": True,
        }

    @property
    def max_payload(self) -> int:
        return self._connection.max_payload

    def state(self, timeout_s: float | None = None) -> StreamState:
        state = self._connection.stream_state(self.name, timeout_s)
        if state is None:
            raise Unavailable(f"there is no stream {self.name}")
        return state

    def size_bytes(self, known_bytes: int) -> int:
        """How much it has; where nobody answers, what is known."""
        try:
            return self.state().size_bytes
        except (TimedOut, Unavailable):
            return known_bytes

    def stored_bytes(self, message_bytes: int) -> int:
        """About what a message takes of the stream's `max_bytes`."""
        return message_bytes + len(self.names.journal_subject) + _OVERHEAD_BYTES

    def publish(self, parts: Sequence[Buffer], expected_last: int, timeout_s: float) -> int:
        """The place of a message that is given in parts; `Refused`, `TimedOut` or `Unavailable`.

        One thread at a time.
        """
        place = self._appends.publish(
            self.names.journal_subject, parts, timeout_s, last_sequence=expected_last
        )
        if self._server_room is not None:
            self._server_room.note_written(sum(memoryview(part).nbytes for part in parts))
        if self._kept is not None:
            self._kept.put(place, *parts)
        return place

    def close(self) -> None:
        """When nothing is published or read any more."""
        self._appends.close()
        self._reads.close()

    def trim(self, place: int) -> None:
        """Removes all packs up to this place."""
        self._connection.purge(self.name, below=place + 1)
        if self._kept is not None:
            self._kept.let_go(place)
        with self._lock:
            for old in [cached for cached in self._cache if cached <= place]:
                self._cached_bytes -= _size(self._cache.pop(old))

    def read(
        self, place: int, timeout_s: float, ahead: bool = True, trust_end: bool = False
    ) -> Pack | Absence:
        """One pack, and those behind it into memory, from a replica nearby; else as `read_from_leader`.

        With `trust_end` a replica that has nothing from there on is believed: for one who is about to append
        there, and will be told otherwise.
        """
        with self._lock:
            pack = self._cache.get(place)
            if pack is not None:
                self._cache.move_to_end(place)
                return pack
        found = self._reads.read(place, self._batch_bytes if ahead else 1, timeout_s)
        for number, message in enumerate(found):
            if message.sequence != place + number:
                break
            try:
                taken = self._take(message)
            except Corruption:
                break
            self.remember(taken)
            pack = pack or taken
        if trust_end and not found:
            return MISSING
        return pack or self.read_from_leader(place, timeout_s)

    def read_from_leader(self, place: int, timeout_s: float) -> Pack | Absence:
        """What the stream's leader has at a place, or whoever has it if that is damaged."""
        try:
            return self._ask_leader(place, timeout_s)
        except Corruption as error:
            return self.find_elsewhere(place, error)

    def find_elsewhere(self, place: int, error: Corruption, before: int | None = None) -> Pack:
        """A pack that the stream's leader has not, or not whole; ``before`` is the checksum that it must follow.

        Raises `error` if nobody has it, `Unavailable` if somebody who may have it could not be asked.
        """
        if self._rescue is None:
            raise error
        _log.error("%s: it is looked for elsewhere", error)
        for found in self._rescue.packs(place):
            with suppress(Corruption, NewerFormat):
                message = StreamMessage(place, found.data)
                pack = self._decode(message)
                if (found.stored or self._fits(pack)) and before in (None, pack.before):
                    self._keep(message)
                    self.remember(pack)
                    _log.warning("the pack at %d of %s was found elsewhere", place, self.name)
                    return pack
        raise error

    def _fits(self, pack: Pack) -> bool:
        """Whether a pack that is not from the stream is of this journal, and not of one of the same name before,
        by the pack that the stream has beside it.
        """
        for place in (pack.place - 1, pack.place + 1):
            with suppress(Corruption):
                message = self._connection.get(self.name, place)
                beside = None if message is None else self._take(message)
                if beside is not None and beside.incarnation == pack.incarnation:
                    first, second = (beside, pack) if place < pack.place else (pack, beside)
                    return second.before == first.checksum
        return self._incarnation == pack.incarnation

    def _ask_leader(self, place: int, timeout_s: float) -> Pack | Absence:
        message = self._connection.get(self.name, place, timeout_s=timeout_s)
        if message is not None:
            pack = self._take(message)
            self.remember(pack)
            return pack
        state = self.state(timeout_s)
        if place > state.last_sequence:
            return MISSING
        if place < state.first_sequence:
            return TRIMMED
        # It may have been stored since.
        if self._connection.get(self.name, place, timeout_s=timeout_s) is not None:
            return self._ask_leader(place, timeout_s)
        raise Corruption(f"{self.name} has no pack at {place}", file=self.name, offset=place)

    def _take(self, message: StoredMessage | StreamMessage) -> Pack:
        """A pack of the stream itself. Raises `Corruption`."""
        pack = self._decode(message)
        self._incarnation = pack.incarnation
        self._keep(message)
        return pack

    def _keep(self, message: StoredMessage | StreamMessage) -> None:
        if self._kept is not None:
            self._kept.put(message.sequence, message.data)

    def _decode(self, message: StoredMessage | StreamMessage) -> Pack:
        pack = decode_pack(message.data, self.name)
        if (pack.cluster, pack.shard, pack.place) != (*self.names, message.sequence):
            raise Corruption(
                f"the pack at {message.sequence} of {self.name} belongs to place {pack.place} of shard "
                f"{pack.shard} of {pack.cluster}",
                file=self.name,
                offset=message.sequence,
            )
        return pack

    def remember(self, pack: Pack) -> None:
        """Keeps a pack in memory for those who read it soon."""
        with self._lock:
            if pack.place in self._cache:
                self._cached_bytes -= _size(self._cache.pop(pack.place))
            self._cache[pack.place] = pack
            self._cached_bytes += _size(pack)
            while self._cached_bytes > self._cache_bytes_max and len(self._cache) > 1:
                self._cached_bytes -= _size(self._cache.popitem(last=False)[1])


def _size(pack: Pack) -> int:
    return memoryview(pack.body).nbytes + 512
