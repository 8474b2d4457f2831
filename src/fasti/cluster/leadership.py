"""Does what a shard's `Writer` asks for: reads, applies, appends, claims.

The decisions are `writer.py`'s; here are the requests, their timeouts, and what a pack has beside what
leadership needs to know: the incarnation, and the chain of checksums. A pack whose chain is broken is
`Corruption`, whoever wrote it.

A call that gives up with `NoQuorum` leaves its pack in flight; the next call goes on with it.
One thread at a time.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from fasti.cluster.nats import NoRoom, Refused
from fasti.cluster.pack import Pack, encode_parts
from fasti.cluster.pack_reader import PackReader
from fasti.cluster.pack_stream import PackStream
from fasti.cluster.patience import Patience, Timeouts
from fasti.cluster.pieces import Pieces
from fasti.cluster.pointer import Place, Pointer, fenced
from fasti.cluster.writer import Writer
from fasti.cluster.writer_actions import (
    ENDS,
    Absence,
    Action,
    AppendPack,
    ApplyPack,
    ClaimPointer,
    InstallManifest,
    LoseShard,
    ReadPack,
    ReadPointer,
    ReportHole,
    Role,
    StandDown,
)
from fasti.errors import Corruption, Fenced, StorageFailed, TimedOut, Unavailable

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class Draft:
    """A pack that has no place yet."""

    first: int
    last: int
    at_us: int
    body: Buffer = b""
    part: int = 0
    parts: int = 1


class Leadership:
    """One broker's part in one shard: it follows, takes over, leads, yields and follows again."""

    def __init__(
        self, stream: PackStream, pointer: Pointer, broker: str, address: str, timeouts: Timeouts
    ) -> None:
        self._stream, self._pointer, self._timeouts = stream, pointer, timeouts
        self._address = address
        self._writer = Writer(broker, secrets.randbits(63) | 1)
        self.pieces = Pieces(Place())
        self.incarnation = 0
        # It was drawn here, and no pack is known to have it: another broker may be first.
        self._drawn = False
        self._checksums = {0: 0}
        self._draft: Draft | None = None
        self._met: Pack | None = None
        # The pack that was published last, and whether it may be in the stream without being known to be.
        self._sent: Pack | None = None
        self._in_flight = self._trusts_end = False
        self._began_us = self._last_us = time.time_ns() // 1000
        # What to do next, after a call that gave up.
        self._action: Action | None = None
        self.sent_bytes = self._read_bytes = 0
        # Of the last leader, if it has yielded: its epoch, and who shall lead next.
        self.yielded: tuple[int, str] | None = None

    @property
    def epoch(self) -> int:
        return self._writer.epoch

    @property
    def role(self) -> Role:
        """What this broker is to the shard."""
        return self._writer.role

    @property
    def sequence(self) -> int:
        """The place in the stream up to which all is known."""
        return self._writer.last

    @property
    def first_position(self) -> int:
        """Frames behind this one are in `pieces`."""
        return self.pieces.base.reader.last_frame

    def follow(self, upto: int | None, packs_max: int, bytes_max: int) -> bool:
        """As a standby: reads up to a place, or to the end; at most so many packs, and no more after
        so many bytes. True if it is there.

        Begins at the pointer's manifest, and does so again if what comes next was trimmed: `pieces` are
        others then. `NoQuorum` if NATS doesn't answer soon, `Corruption` if what is read can't be right.
        """
        patience = Patience(self._stream.name, self._timeouts.answer_s)
        self._in_flight, self._action = False, None
        action, packs, self._read_bytes = self._writer.follow(), 0, 0
        while not isinstance(action, ENDS):
            if isinstance(action, ReadPack):
                # What comes next is asked for the next time.
                if upto is not None and action.sequence > upto:
                    return True
                if packs >= packs_max or self._read_bytes >= bytes_max:
                    return False
                packs += 1
            if packs > 1 and patience.is_over:
                # It is slow, and goes on: the caller has other things to do as well.
                return False
            patience.check()
            action = self._do(action, patience)
        self._check_end(action)
        return True

    def give_up(self, to: str) -> None:
        """As the leader, with nothing in flight: writes `LeaderYielded`. Raises what `append` raises."""
        self._draft = Draft(0, 0, self._last_us, to.encode())
        self._drive(
            self._action or self._writer.yield_shard(),
            Patience(self._stream.name, self._timeouts.call_s),
        )
        self.pieces.take(self._settled(), self._writer.reader, self._stream.name)

    def take_over(self) -> None:
        """Reads to the end, writes `LeaderStarted`, claims the pointer. `Fenced` if another was first."""
        patience = Patience(f"the take-over of {self._stream.name}", self._timeouts.open_s)
        self._draft = None
        # If a replica nearby doesn't have all, `LeaderStarted` is refused.
        self._trusts_end = True
        self._drive(self._action or self._writer.take_over(), patience)
        self.pieces.take(self._settled(), self._writer.reader, self._stream.name)
        self._pointer.own()

    def append(self, draft: Draft) -> Pack:
        """Makes a pack durable, or goes on with the same one after `NoQuorum`. Returns it in its place.

        `Fenced`: it did not happen, and nothing more will. `StorageFailed`: nobody can know any more.
        """
        action = self._action
        if action is None:
            action = self._writer.append(draft.first, draft.last)
            self._draft = draft
        assert self._draft is draft
        self._drive(action, Patience(self._stream.name, self._timeouts.call_s))
        self._last_us = draft.at_us
        pack = self._settled()
        self._stream.remember(pack)
        return pack

    @property
    def reader(self) -> PackReader:
        """The state of a reader that has read all."""
        return self._writer.reader

    def _settled(self) -> Pack:
        """What was sent is what is there: the same bytes are sent again for as long as it takes."""
        pack, self._in_flight = self._sent, False
        assert pack is not None
        assert pack.place == self._writer.last
        return pack

    # The writer's actions

    def _drive(self, action: Action, patience: Patience) -> None:
        self._action = action
        while not isinstance(self._action, ENDS):
            patience.check()
            self._action = self._do(self._action, patience)
        end, self._action = self._action, None
        self._check_end(end)

    def _check_end(self, end: Action) -> None:
        if isinstance(end, LoseShard):
            if end.outcome == "unknown":
                raise StorageFailed(
                    f"the place of the last pack was trimmed from {self._stream.name} by another broker"
                )
            raise fenced(end.by_epoch)
        if isinstance(end, StandDown):
            raise Fenced(
                f"another broker was first with epoch {end.epoch}", details={"epoch": end.epoch}
            )
        if isinstance(end, ReportHole):
            raise Corruption(
                f"the pack at {end.sequence} of {self._stream.name} doesn't follow the one before",
                file=self._stream.name,
                offset=end.sequence,
            )

    def _do(self, action: Action, patience: Patience) -> Action:
        changes = isinstance(action, AppendPack | ClaimPointer)
        try:
            result = self._perform(action)
        except Refused as refusal:
            self._trusts_end = False
            patience.pause(refusal.text, isinstance(refusal, NoRoom))
            return self._writer.refused() if changes else self._writer.unanswered()
        except (TimedOut, Unavailable) as error:
            patience.pause(error.message)
            return self._writer.unanswered()
        return result()

    def _perform(self, action: Action) -> Callable[[], Action]:
        """Does it, and returns how to tell the writer."""
        writer, timeout_s = self._writer, self._timeouts.answer_s
        match action:
            case ReadPack(place):
                met = self._read(place)
                return partial(writer.read, met if isinstance(met, Absence) else met.header)
            case ApplyPack():
                return partial(writer.applied, self._apply())
            case AppendPack(_, expected_last):
                place = self._publish(action)
                if place == expected_last + 1 and self._sent is not None:
                    self._note(self._sent)
                return partial(writer.appended, place)
            case ReadPointer():
                record = self._pointer.read(timeout_s)
                return partial(writer.pointer_read, record.header if record.revision else None)
            case InstallManifest():
                return self._install
            case ClaimPointer(expected, value):
                names = self._stream.names
                record = replace(
                    self._pointer.record,
                    epoch=value.epoch,
                    broker=value.broker,
                    address=self._address,
                    incarnation=self.incarnation,
                    journals=(names.journal_stream,),
                )
                return partial(
                    writer.pointer_claimed, self._pointer.write(record, expected, timeout_s)
                )
            case _:
                raise AssertionError(action)

    def _read(self, place: int) -> Pack | Absence:
        """Whose pack is where this broker's may be is asked of the stream's leader."""
        if self._in_flight:
            met = self._stream.read_from_leader(place, self._timeouts.answer_s)
        else:
            timeout_s = max(1.0, self._timeouts.answer_s)
            met = self._stream.read(place, timeout_s, trust_end=self._trusts_end)
        if isinstance(met, Absence):
            return met
        known = self._checksums.get(place - 1)
        foreign = not self._drawn and self.incarnation not in (0, met.incarnation)
        if foreign or (known is not None and known != met.before):
            what = "belongs to another journal" if foreign else "doesn't follow the one before"
            name = self._stream.name
            error = Corruption(f"the pack at {place} of {name} {what}", file=name, offset=place)
            if foreign or known is None:
                raise error
            met = self._stream.find_elsewhere(place, error, known)
        self.incarnation, self._drawn = met.incarnation, False
        self._met = met
        self._read_bytes += memoryview(met.body).nbytes
        self._note(met)
        return met

    def _note(self, pack: Pack) -> None:
        """Only the last few checksums are ever asked for."""
        self._checksums[pack.place] = pack.checksum
        self._checksums.pop(pack.place - 4, None)

    def _apply(self) -> int:
        assert self._met is not None
        self._in_flight = False
        _, reader = self._writer.reader.take(self._met.header)
        self.pieces.take(self._met, reader, self._stream.name)
        header = self._met.header
        if header.is_end:
            self.yielded = header.epoch, bytes(memoryview(self._met.body)).decode()
        elif header.is_start:
            self.yielded = None
        return self.pieces.finished + 1

    def _publish(self, action: AppendPack) -> int:
        if not self.incarnation:
            self.incarnation, self._drawn = secrets.randbits(63) | 1, True
        header, place = action.header, action.expected_last + 1
        draft = self._draft or Draft(header.first_frame, header.last_frame, self._began_us)
        names = self._stream.names
        pack = Pack(
            names.cluster, names.shard, self.incarnation, place, header, draft.at_us,
            self._checksums[action.expected_last], draft.body, draft.part, draft.parts,
        )  # fmt: skip
        parts, self._sent = encode_parts(pack)
        self._in_flight = True
        self.sent_bytes = sum(len(part) for part in parts)
        stored = self._stream.publish(parts, action.expected_last, self._timeouts.answer_s)
        self._drawn = False
        return stored

    def _install(self) -> Action:
        """Begins at the manifest's place. Blocks are loaded by the shard when all is read."""
        record = self._pointer.record
        if record.place.sequence > self._writer.last:
            self.pieces = Pieces(record.place)
            self._checksums = {record.place.sequence: record.place.checksum}
        self.incarnation = self.incarnation or record.incarnation
        if record.incarnation not in (0, self.incarnation):
            raise Corruption(
                f"the pointer of {self._stream.name} belongs to another journal",
                file=self._stream.name,
                offset=record.place.sequence,
            )
        reader = record.place.reader
        return self._writer.installed(reader, reader.last_frame + 1)
