"""A shard's recovery: after a failure the engine is dropped, and a new one is loaded.

When an append or sync fails, no caller is told ok: everything that was decided and not yet durable
answers `unknown` (or `storage_full`, if nothing of it was written). The new engine is loaded from the
manifest and the journal as far as it was synced. Consumers' credits go with the engine; their sessions
raise `closed` when they next receive, and may lease again.

Servers that are away (`no_quorum`) are no failure: the committer waits for them, and everything stays as it
is. Only a shard that is closed meanwhile, or whose engine fails, gives up what it has under way.

A storage that raises `fenced` says that another process leads the shard, and that nothing happened of what it
was to append or sync. Where shards move (`Shard.whereabouts`) nothing is loaded again then: all that is
not durable answers `moved`, which is definite, and the shard ends. Its process goes on without it (host.py).
Everywhere else it is a failure like any other.

It is done in pieces, in turns of the sequencer, which decides nothing meanwhile.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from fasti.broker.committer import Work
from fasti.broker.sequencer import full_disk
from fasti.broker.shard_map import Leader
from fasti.errors import (
    FastiError,
    Fenced,
    NoQuorum,
    OutcomeUnknown,
    StorageFailed,
    StorageFull,
)
from fasti.model import back_off

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

_log = logging.getLogger("fasti.broker.shard")

# So many recoveries in a row that led to nothing, and the shard gives up.
_FAILURES_MAX = 8
# For so long after failures in a row health doesn't say that work gets done, unless some is.
_PROBATION_S = 5.0


class Recovery:
    """One per shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._monotonic = shard.runtime.monotonic
        # What it recovers from, or why it has ended; set with the sequencer's lock held.
        self.failure: FastiError | None = None
        self.count = 0
        self._failures_in_a_row = 0
        # Once the engine is dropped: up to where the journal is synced, and when to open it again.
        self._reopen: tuple[int, float] | None = None
        self._recovered_at = 0.0

    @property
    def is_unproven(self) -> bool:
        """Whether it is under way, or was a moment ago and nothing was written between failures."""
        lately = self._monotonic() - self._recovered_at < _PROBATION_S
        unproven = self._failures_in_a_row > 0 and not self._shard.committer.committed
        return self.failure is not None or (lately and unproven)

    @property
    def is_fenced(self) -> bool:
        """Whether another process leads the shard, and this one lets it go."""
        return self._is_fence(self.failure)

    def _is_fence(self, error: BaseException | None) -> bool:
        """Where it is decided that a shard is dropped, and not recovered: by what its storage raised."""
        return isinstance(error, Fenced) and self._shard.whereabouts is not None

    def note(self, error: FastiError) -> None:
        """What it has to recover from; one that is fenced stays so. With the sequencer's lock held."""
        if not self.is_fenced:
            self.failure = error
        if self._is_fence(error):
            self._leave()

    def _leave(self) -> None:
        """Who leads the shard now may be known by now, or not."""
        shard = self._shard
        if shard.elsewhere is None:
            leader = shard.whereabouts() if shard.whereabouts is not None else Leader(0, None)
            shard.elsewhere = leader if leader.epoch > shard.epoch else Leader(shard.epoch, None)

    def checkpoint_failed(self, error: BaseException) -> None:
        """A manifest that another process has replaced fences as a journal does. The housekeeper's turn."""
        if isinstance(error, Fenced) and self._is_fence(error):
            self._shard.sequencer.fail(error)

    def journal_failed(self, error: FastiError, undone: list[Work]) -> None:
        """No caller whose work is not durable is told ok. The committer's turn."""
        requests = [request for work in undone for request in work.requests]
        full = isinstance(error, StorageFull)
        sequencer = self._shard.sequencer
        if self._is_fence(error):
            self._leave()
        try:
            for request in requests:
                if not request.answer.done():
                    request.answer.set_exception(self._undone(error))
            if full:
                sequencer.note_full(sum(request.size_bytes for request in requests))
        finally:
            sequencer.fail(error)

    def _undone(self, error: FastiError) -> FastiError:
        """What is told of a request that was decided, and is not durable."""
        if self._is_fence(error):
            return self._shard.end_error()
        if isinstance(error, StorageFull):
            return full_disk(error)
        return OutcomeUnknown(f"storage failed: {error}")

    # The sequencer's turn

    def seconds_left(self, closing: bool) -> float | None:
        """With its lock. Longer each time that nothing was written since the last recovery."""
        if self.is_fenced:
            return 0.0
        if self._reopen is None:
            return None if self._shard.housekeeper.is_finishing else 0.0
        return 0.0 if closing else self._reopen[1] - self._monotonic()

    def go_on(self) -> bool:
        """One piece: drops the engine, then loads it again; False if that can't be done."""
        if self.is_fenced:
            self._shard.committer.stop()
            return False
        if self._reopen is not None:
            return self._open_again(self._reopen[0])
        self._shard.committer.stop()
        if self._shard.housekeeper.pause():
            self._drop_engine()
        return True

    def _drop_engine(self) -> None:
        shard = self._shard
        # What was answered when it was written (durability `interval`) is kept if it can be.
        with suppress(FastiError):
            shard.store.journal.sync()
        synced = shard.store.journal.synced_sequence
        self._failures_in_a_row = 0 if shard.committer.committed else self._failures_in_a_row + 1
        shard.lose_sessions()
        shard.store.close()
        self._plan_reopening(synced)

    def _plan_reopening(self, synced: int) -> None:
        pause_s = back_off(0.005, self._failures_in_a_row, 1.0) if self._failures_in_a_row else 0.0
        self._reopen = (synced, self._monotonic() + pause_s)

    def _open_again(self, synced: int) -> bool:
        shard = self._shard
        shard.sequencer.opening()
        try:
            shard.open(synced)
        except (StorageFull, StorageFailed) as error:
            # It may pass: the disk was full, or a cable was loose.
            self.failure = error
            self._failures_in_a_row += 1
            self._plan_reopening(synced)
            # Servers that keep it may be away for hours, and nothing here is broken.
            return isinstance(error, NoQuorum) or self._failures_in_a_row <= _FAILURES_MAX
        except Exception as error:
            self.note(error if isinstance(error, FastiError) else FastiError(repr(error)))
            return False
        shard.sequencer.opened()
        shard.feed.reset()
        # The files are others now, and what was held of the old ones may be deleted.
        shard.holds.drop_all()
        _log.warning("the shard has recovered from: %s", self.failure)
        self.failure = self._reopen = None
        self._recovered_at = self._monotonic()
        self.count += 1
        shard.housekeeper.resume()
        return True
