"""A shard's pointer: who leads it, and which manifest is in force. One subject, changed by compare-and-set.

The record is small, since it is written for each checkpoint and each take-over. The manifest itself is
a block: it outgrows a message. Beside its place in the stream the record keeps what a reader needs to
begin there: the writer's epoch and nonce, the last frame, and the checksum that the next pack names.

Reads ask the stream's leader. An unanswered change is resolved by a read, see `pointer_owner.py`.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from xxhash import xxh3_64_hexdigest

from fasti.cluster.names import ShardNames
from fasti.cluster.nats import NatsConnection, NoRoom, Refused
from fasti.cluster.pack_reader import PackReader
from fasti.cluster.patience import DEFAULT_TIMEOUTS, Patience, Timeouts
from fasti.cluster.pointer_owner import GRACE_S, FreeSpace, PointerOwner
from fasti.cluster.writer_actions import ClaimPointer, LoseShard, PointerHeader, ReadPointer
from fasti.errors import Corruption, Fenced, TimedOut, Unavailable
from fasti.storage.formats import check_format

POINTER_VERSION = 1
_HISTORY = 8


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the journal's stream at which a reader can begin: all packs up to it are accounted for."""

    sequence: int = 0
    reader: PackReader = PackReader()  # noqa: RUF009 - it is immutable
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class PointerRecord:
    """What the pointer says. ``revision`` is its sequence in its stream and not part of the message."""

    revision: int = 0
    epoch: int = 0
    broker: str = ""
    address: str = ""
    # The manifest's block and version: empty and 0 before the first.
    manifest: str = ""
    version: int = 0
    # The frame up to which the manifest tells all.
    position: int = 0
    incarnation: int = 0
    place: Place = Place()
    journals: tuple[str, ...] = ()

    @property
    def header(self) -> PointerHeader:
        """As leadership sees it."""
        return PointerHeader(
            self.revision, self.epoch, self.broker, self.manifest, self.place.sequence
        )

    def encode(self) -> bytes:
        document: dict[str, Any] = {"format": POINTER_VERSION, **asdict(self)}
        del document["revision"]
        document["place"] = [self.place.sequence, *self.place.reader, self.place.checksum]
        text = json.dumps(document, separators=(",", ":")).encode()
        return text + b"\n" + xxh3_64_hexdigest(text).encode()

    @classmethod
    def decode(cls, data: bytes, revision: int, stream: str) -> PointerRecord:
        """Raises `Corruption` or `NewerFormat`."""
        text, _, checksum = data.rpartition(b"\n")
        if xxh3_64_hexdigest(text).encode() != checksum:
            raise Corruption(f"the pointer in {stream} is damaged", file=stream, offset=revision)
        document = json.loads(text)
        check_format("the pointer", document.pop("format"), POINTER_VERSION)
        sequence, epoch, nonce, last_frame, before = document.pop("place")
        place = Place(sequence, PackReader(epoch, nonce, last_frame), before)
        journals = tuple(document.pop("journals"))
        return cls(revision=revision, place=place, journals=journals, **document)


class Pointer:
    """The pointer of one shard. `claim` and `switch` are for one thread at a time, the rest for any."""

    def __init__(
        self,
        connection: NatsConnection,
        names: ShardNames,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        grace_s: float = GRACE_S,
    ) -> None:
        self._connection, self._names, self._timeouts = connection, names, timeouts
        self._grace_s = grace_s
        # The newest record known.
        self.record = PointerRecord()
        self._owner: PointerOwner | None = None
        self._next: PointerRecord | None = None
        # Since when which place is in force here.
        self._in_force: deque[tuple[float, int]] = deque()
        self._floor = 0
        # Set where damage may be found: while it says so nothing is trimmed or deleted.
        self.is_held: Callable[[], bool] = lambda: False

    @staticmethod
    def stream_config(names: ShardNames, replicas: int) -> dict[str, Any]:
        """A few older records stay, for whoever asks how something came about."""
        return {
            "name": names.pointer_stream,
            "subjects": [names.pointer_subject],
            "storage": "file",
            "retention": "limits",
            "discard": "old",
            "num_replicas": replicas,
            "max_msgs_per_subject": _HISTORY,
            "deny_delete": True,
            "allow_direct": False,
        }

    def read(self, timeout_s: float | None = None) -> PointerRecord:
        """The newest record; revision 0 if there is none. Raises `TimedOut` or `Unavailable`."""
        stream = self._names.pointer_stream
        found = self._connection.get(
            stream, subject=self._names.pointer_subject, timeout_s=timeout_s
        )
        if found is None:
            self.record = PointerRecord()
        else:
            self.record = PointerRecord.decode(found.data, found.sequence, stream)
        return self.record

    def write(self, record: PointerRecord, expected: int, timeout_s: float | None = None) -> int:
        """The new revision. Raises `Refused`, `TimedOut` or `Unavailable`."""
        revision = self._connection.publish(
            self._names.pointer_subject,
            record.encode(),
            last_subject_sequence=expected,
            timeout_s=timeout_s,
        )
        self.record = replace(record, revision=revision)
        return revision

    def own(self) -> None:
        """The record is this broker's: from now on it may `switch`."""
        self._owner = PointerOwner(self.record.header, ())
        self._in_force.append((time.monotonic(), self.record.place.sequence))

    @property
    def floor(self) -> int:
        """Up to here the journal may be trimmed: the manifest of that place is in force for long enough."""
        while self._in_force and self._in_force[0][0] + self._grace_s <= time.monotonic():
            self._floor = self._in_force.popleft()[1]
        return 0 if self.is_held() else self._floor

    def switch(self, manifest: str, version: int, position: int, place: Place) -> None:
        """Puts a manifest in force. `Fenced` if the pointer is another's, `NoQuorum` if nobody can tell.

        After `NoQuorum` the change may still come about: `settle` resolves it, before anything else.
        """
        self.settle()
        owner = self._check_owner()
        change = owner.switch(manifest, place.sequence, ())
        self._next = replace(
            self.record, manifest=manifest, version=version, position=position, place=place
        )
        self._drive(owner, change)

    def settle(self) -> None:
        """Resolves a change whose outcome is not known. Does nothing otherwise."""
        owner = self._check_owner()
        if self._next is not None:
            self._drive(owner, ReadPointer())

    @property
    def is_changing(self) -> bool:
        """Whether a change's outcome is not known: it may still come about."""
        return self._next is not None

    def check_owned(self) -> None:
        """After a read: `Fenced` if the pointer is not this broker's any more."""
        owner = self._check_owner()
        if self.record.epoch != owner.pointer.epoch:
            raise fenced(self.record.epoch)

    def _check_owner(self) -> PointerOwner:
        if self._owner is None:
            raise Fenced("the pointer was never claimed by this broker")
        if self._owner.lost_to:
            raise fenced(self._owner.lost_to)
        return self._owner

    def _drive(
        self, owner: PointerOwner, action: ClaimPointer | ReadPointer | FreeSpace | LoseShard
    ) -> None:
        patience = Patience(f"the pointer {self._names.pointer_stream}", self._timeouts.call_s)
        while not isinstance(action, FreeSpace | LoseShard):
            try:
                patience.check()
            except BaseException:
                # Whatever was asked, the next thing to do is to read.
                owner.unanswered()
                raise
            action = self._do(owner, action, patience)
        self._next = None
        if isinstance(action, LoseShard):
            raise fenced(action.by_epoch)
        self._in_force.append((time.monotonic(), self.record.place.sequence))

    def _do(
        self, owner: PointerOwner, action: ClaimPointer | ReadPointer, patience: Patience
    ) -> ClaimPointer | ReadPointer | FreeSpace | LoseShard:
        timeout_s = self._timeouts.answer_s
        try:
            if isinstance(action, ReadPointer):
                return owner.pointer_read(self.read(timeout_s).header)
            assert self._next is not None
            return owner.changed(self.write(self._next, action.expected_revision, timeout_s))
        except Refused as refusal:
            patience.pause(refusal.text, isinstance(refusal, NoRoom))
            return owner.refused() if isinstance(action, ClaimPointer) else owner.unanswered()
        except (TimedOut, Unavailable) as error:
            patience.pause(error.message)
            return owner.unanswered()


def fenced(epoch: int) -> Fenced:
    """What a broker is told that has lost its shard."""
    by = f"epoch {epoch}" if epoch else "a newer epoch"
    return Fenced(f"another broker has the shard since {by}", details={"epoch": epoch})
