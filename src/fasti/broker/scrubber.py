"""The scrubber: reads everything that is stored again and again, slowly, to find damage before a reader does.

A pass begins when the last one is `scrub_interval` old, some minutes after a start, or when it is asked
for; a restart begins anew. It keeps to `scrub_rate` and rests while the journal has work.

What it finds is acted upon at once. Messages whose payload is damaged die of `corrupt` now, while a backup
may still have the block, and not when they are due. Of everything but payloads memory has a second copy:
a checkpoint writes damaged blocks of rows, changes and state anew, so that the next start doesn't need them.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fasti.broker.threads import Driver
from fasti.broker.topics import read_topics
from fasti.core.rows.location import in_block
from fasti.core.timeline.corrupt import GiveUp
from fasti.errors import Closed, FastiError
from fasti.model import SEQUENCE_BITS
from fasti.storage.damages import ScrubFinding
from fasti.storage.runs import Block, rows_columns
from fasti.storage.seals import unseal
from fasti.storage.store import ShardStore

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

_log = logging.getLogger("fasti.broker.scrubber")

# After a start there is something else to do first.
_FIRST_S = 600.0
# So many steps that wait to be written are traffic, which goes first.
_BUSY_STEPS = 2
_REST_S = 0.05
_FINDINGS_MAX = 1_000


class _Abandoned(Exception):
    """The shard ends, or has opened its directory anew."""


@dataclass(slots=True)
class ScrubPass:
    """One pass: how far it is, and what it found."""

    started_us: int
    total_bytes: int = 0
    read_bytes: int = 0
    finished_us: int | None = None
    findings: list[ScrubFinding] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "started_us": self.started_us,
            "finished_us": self.finished_us,
            "total_bytes": max(self.total_bytes, self.read_bytes),
            "read_bytes": self.read_bytes,
            "findings": [finding.to_dict() for finding in self.findings],
        }


class Scrubber:
    """A service whose step is a pass. `start_pass` and what it tells are for any thread."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._turns = shard.shared.scrubs
        self._monotonic = shard.runtime.monotonic
        self._changed = shard.threads.condition()
        self._stopping = self._wanted = False
        interval_s = shard.settings.scrub_interval_us / 1e6
        self._next_at: float | None = None
        if interval_s:
            self._next_at = self._monotonic() + min(interval_s, _FIRST_S)
        self.current: ScrubPass | None = None
        self.last: ScrubPass | None = None
        self.read_bytes = 0
        name = shard.label("fasti-scrub")
        self._driver = Driver(shard.threads, name, self._changed, self._take, self._step)

    def start(self) -> None:
        """Begins."""
        self._driver.start()

    def stop(self) -> None:
        """Ends at the next piece."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._driver.join()

    def start_pass(self) -> None:
        """Begins a pass, unless one is under way."""
        with self._changed:
            if self._stopping:
                raise Closed("the shard is closed")
            if self.current is None:
                self._wanted = True
                self.current = ScrubPass(self._shard.clock.now_us())
                self._changed.notify_all()

    def _take(self) -> float | None:
        if self._stopping:
            return 0.0
        wait_s = None if self._next_at is None else self._next_at - self._monotonic()
        if not self._wanted and (wait_s is None or wait_s > 0):
            return wait_s
        if not self._turns.begin(self, self._changed):
            return None  # Another shard of the process is read.
        self._wanted = False
        return 0.0

    def _step(self) -> bool:
        if self._stopping:
            self._turns.end(self)
            return False
        with self._changed:
            self.current = scrub = self.current or ScrubPass(self._shard.clock.now_us())
        try:
            self._scrub(scrub)
        except _Abandoned:
            pass
        finally:
            interval_s = self._shard.settings.scrub_interval_us / 1e6
            with self._changed:
                self.current = None
                self._next_at = self._monotonic() + interval_s if interval_s else None
                self._changed.notify_all()
            self._turns.end(self)
        return True

    def _scrub(self, scrub: ScrubPass) -> None:
        store = self._shard.store
        manifest = store.manifest
        scrub.total_bytes = store.storage.scrub_bytes(manifest)
        pace = _Pacer(self, store, scrub).wait
        for finding in store.storage.scrub(manifest, pace):
            # What a checkpoint has put out of force meanwhile is not needed any more.
            if self._is_needed(store, finding.file):
                if len(scrub.findings) < _FINDINGS_MAX:
                    scrub.findings.append(finding)
                self._act(store, finding, {block.payloads_name: block for block in manifest.blocks})
        scrub.finished_us = self._shard.clock.now_us()
        self.last = scrub
        counts = (scrub.read_bytes, len(scrub.findings))
        _log.info("a scrub has read %d bytes and found %d damaged files", *counts)
        if scrub.findings:
            # What memory has is written anew.
            with suppress(FastiError):
                self._shard.housekeeper.checkpoint_now()

    def _is_needed(self, store: ShardStore, file: str) -> bool:
        if not file.startswith("blocks/"):
            return True
        return file.removeprefix("blocks/") in store.manifest.names

    def _act(self, store: ShardStore, finding: ScrubFinding, blocks: dict[str, Block]) -> None:
        store.payloads.damages.note(finding.damaged)
        name = finding.file.removeprefix("blocks/")
        if not name.endswith(".payloads"):
            return
        # What was read before it rotted is read again.
        store.payloads.forget_block(name)
        block = blocks.get(name)
        if block is None:
            return  # Of a log: groups come to its rows one after the other.
        for command in self._losses(store, block):
            self._shard.damage.give_up(command)

    def _losses(self, store: ShardStore, block: Block) -> list[GiveUp]:
        """The messages that lie in a block's damaged rows, as far as its metadata can be read."""
        losses: list[GiveUp] = []
        with suppress(FastiError):
            columns = rows_columns(unseal(store.blocks.get(block.rows_name), block.rows_name))
            places = in_block(block.number, np.arange(block.rows, dtype=np.int64))
            lost = store.payloads.damaged(places)
            topics = {topic.number: topic for topic in read_topics(self._shard)}
            for number in np.unique(columns["topic"][lost]).tolist():
                mine = lost & (columns["topic"] == number)
                partitions = columns["partition"][mine].astype(np.int64)
                ids = columns["sequence"][mine] | partitions << SEQUENCE_BITS
                topic = topics.get(number)
                kind = self._shard.engine.kind(topic.settings.kind) if topic is not None else None
                if topic is not None and kind is not None and GiveUp in kind.handlers():
                    losses.append(GiveUp(topic.name, ids, places[mine]))
        return losses

    # For the pacer

    def _progressed(self, store: ShardStore, scrub: ScrubPass, size_bytes: int) -> None:
        """Raises when there is no use in going on."""
        self._driver.busy()
        scrub.read_bytes += size_bytes
        self.read_bytes += size_bytes
        if self._stopping or self._shard.store is not store:
            raise _Abandoned

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, seconds)


class _Pacer:
    """Spreads reads over time, and lets traffic go first."""

    def __init__(self, scrubber: Scrubber, store: ShardStore, scrub: ScrubPass) -> None:
        self._scrubber, self._store, self._scrub = scrubber, store, scrub
        self._monotonic = scrubber._monotonic
        self._free_at = self._monotonic()

    def wait(self, size_bytes: int) -> None:
        scrubber, shard = self._scrubber, self._scrubber._shard
        rate = shard.settings.scrub_bytes_per_s
        self._free_at = max(self._free_at, self._monotonic()) + size_bytes / rate
        while True:
            scrubber._progressed(self._store, self._scrub, size_bytes)
            size_bytes = 0
            left_s = self._free_at - self._monotonic()
            if left_s <= 0:
                return
            rest_s = _REST_S if shard.committer.waiting_steps > _BUSY_STEPS else 0.0
            self._free_at += rest_s
            scrubber._pause(min(1.0, left_s + rest_s))
