"""Machines with one rule broken, each of which the model must catch."""

from __future__ import annotations

from collections.abc import Iterable

from fasti.cluster.pointer_owner import FreeSpace, PointerOwner
from fasti.cluster.writer import (
    Action,
    AppendPack,
    ClaimPointer,
    InstallManifest,
    PackHeader,
    PointerHeader,
    ReadPointer,
    Role,
    Serve,
    Writer,
)


class SeveralInFlight(Writer):
    """Sends the next pack before the one before it is answered, to follow it."""

    def unanswered(self) -> Action:
        mine = self._in_flight
        if not isinstance(self._asked, AppendPack) or mine is None or mine.is_start:
            return super().unanswered()
        self._settle()
        return self._say(Serve(self._epoch))


class BelievesRefusals(Writer):
    """Takes `wrong last sequence` for an answer, without reading."""

    def refused(self) -> Action:
        if self.role is Role.LEADER:
            return self._lose(self._epoch + 1)
        return super().refused()


class SkipsWhatItMeets(Writer):
    """As a candidate, takes the last sequence from the refusal, and doesn't apply what is there."""

    def _meet(self, header: PackHeader) -> Action:
        if self._started or self._in_flight is None or header.has_writer_of(self._in_flight):
            return super()._meet(header)
        self.reader = self.reader._replace(epoch=max(self.reader.epoch, header.epoch))
        self._in_flight = None
        self.last += 1
        return self._next_place()


class TakesTrimmedForMoved(Writer):
    """Says `moved` of a pack whose place can't be read any more: CLUSTER's rule to the letter."""

    def _meet_trimmed(self) -> Action:
        return self._lose(0, "moved") if self._started else super()._meet_trimmed()


class AppendsAnew(Writer):
    """Sends a pack that it could not find again behind whatever is there, as if it were new."""

    def _meet(self, header: PackHeader) -> Action:
        mine = self._in_flight
        if not self._started or mine is None or header.has_writer_of(mine):
            return super()._meet(header)
        self.last += 1
        return self._publish(mine)


class ClaimsWithItsOwnManifest(Writer):
    """Claims the pointer with the manifest that it knows, not with the one in force."""

    def _weigh_pointer(self) -> Action:
        action = super()._weigh_pointer()
        if self._started and isinstance(action, InstallManifest):
            value = self._own_pointer()
            return self._say(ClaimPointer(self.pointer.revision, value))
        return action

    def _own_pointer(self) -> PointerHeader:
        return PointerHeader(0, self._epoch, self._broker, self._installed or "", 0)


class TrimsWithoutAClaim(PointerOwner):
    """Takes a change that was not answered for one that stands, and deletes what it put out of force."""

    def unanswered(self) -> ReadPointer | FreeSpace:  # type: ignore[override]
        return self._settle(self._pointer.revision + 1)


class SweepsEverything(PointerOwner):
    """Deletes all blocks that its own manifest doesn't name, whatever their epochs."""

    def leftovers(self, blocks: Iterable[tuple[str, int]]) -> list[str]:
        return [name for name, _ in blocks if name not in self._blocks | self._next_blocks]


class ForgetsItsChange(PointerOwner):
    """Gives a change up when it isn't there, and deletes its blocks: it may still arrive."""

    def refused(self) -> ReadPointer | FreeSpace:  # type: ignore[override]
        gone = self._next_blocks - self._blocks
        self._next, self._next_blocks, self._asked = None, frozenset(), None
        return FreeSpace(self._pointer.sequence, gone)
