"""How shards come to a process and leave it while it serves.

One that leaves politely admits nothing new, lets what was admitted become durable and be answered, tells its
sessions where it is, and closes its storage. One whose storage is fenced has ended by itself (recovery.py): its
callers know, and what worked for it is ended here. So has one of a cluster whose storage has lost what it needs:
another broker may have it still. Either way the others of the process don't notice.

Shards are opened side by side: a process that takes several over from one that died reads them all at once. Only
what all of them have in common changes for one at a time, as does a shard that leaves. Any thread but the shards' own; `note_end` is for those.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from fasti.broker.shard_map import Leader, moved
from fasti.errors import AlreadyExists, Corruption, FastiError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from fasti.broker.host import Host
    from fasti.broker.service import Service
    from fasti.broker.shard import Shard
    from fasti.runtime import Thread
    from fasti.storage.storage_engine import StorageEngine

_log = logging.getLogger("fasti.broker")

# So long a shard that leaves waits for calls that change the catalogue, and hold when all shards know.
_CHANGES_S = 2.0
# So long callers wait for a shard that is being opened. Then they hear where it is, as far as is known.
_OPENING_S = 0.5


class Moves:
    """Of one host."""

    def __init__(self, host: Host, fail: Callable[[], None]) -> None:
        """`fail` is called when a shard has ended that has not left: it is closed, or failed for good."""
        self._host, self._fail = host, fail
        self._one_moves = threading.Lock()
        # What is opened now; discarded by whoever opens it, which callers may wait for.
        self._opening: set[int] = set()
        self._opened = threading.Condition()
        self._drops: list[Thread] = []

    def add(self, number: int, storage: StorageEngine, epoch: int | None) -> None:
        """See `Host.add`."""
        host = self._host
        self._check(number)
        with self._one_moves:
            if number in host.services or number in self._opening:
                raise AlreadyExists(f"shard {number} is here already")
            self._opening.add(number)
            beside = len(host.services) + len(self._opening)
        try:
            shard = host.open_shard(number, storage, beside)
            if epoch is None:
                epoch = shard.store.journal.epoch
            shard.epoch = epoch
            with self._one_moves:
                self._serve(number, shard, beside)
        finally:
            with self._opened:
                self._opening.discard(number)
                self._opened.notify_all()
        _log.info("shard %d is led here, under epoch %d", number, epoch)

    def await_opening(self, number: int) -> bool:
        """Whether a shard is being opened; then returns when it is here, or will not be, or takes long."""
        if number not in self._opening:
            return False
        with self._opened:
            self._opened.wait_for(lambda: number not in self._opening, _OPENING_S)
        return True

    def _serve(self, number: int, shard: Shard, beside: int) -> None:
        host = self._host
        try:
            service = host.make_service(shard, beside)
        except BaseException:
            shard.close(checkpoint=False)
            raise
        host.map.note(number, shard.epoch, host.address)
        host.put_in(number, shard, service)
        if host.catalogue is not None:
            host.catalogue.add(number, service)

    def drop(self, number: int, to_address: str | None, epoch: int, checkpoint: bool) -> None:
        """See `Host.drop`."""
        host = self._host
        self._check(number)
        host.map.forget(number, epoch)
        if to_address is not None:
            host.map.note(number, epoch, to_address)
        with self._one_moves:
            taken = host.take_out(number)
            if taken is None:
                return
            shard, service = taken
            if host.catalogue is not None:
                host.catalogue.let_finish(number, _CHANGES_S)
            if checkpoint:
                with suppress(FastiError):
                    shard.checkpoint()
            self._let_go(number, shard, service)
            _log.info("shard %d has left for %s", number, to_address or "another process")

    def _check(self, number: int) -> None:
        self._host.check_number(number)
        if self._host.shared is None:
            raise InvalidArgument("the only shard of a broker stays", field="number")

    def _let_go(self, number: int, shard: Shard, service: Service) -> None:
        """Ends a shard that was taken out, and everything that works for it."""
        host = self._host
        service.close()
        shard.elsewhere = host.map.leader(number)
        # A checkpoint under way would be waited for: it is given up.
        shard.housekeeper.pause()
        shard.sequencer.close()
        shard.committer.stop()
        # All that was admitted is answered.
        service.moved = moved(number, host.map.leader(number))
        service.end_sessions(service.moved)
        with suppress(FastiError):
            shard.close(checkpoint=False)
        if host.catalogue is not None:
            host.catalogue.remove(number)

    def note_end(self, number: int, shard: Shard) -> None:
        """A shard takes nothing any more. In the sequencer's last turn: nothing here waits."""
        lost = self._host.on_fenced is not None and isinstance(shard.failure, Corruption)
        if lost and shard.elsewhere is None:
            shard.elsewhere = Leader(shard.epoch, None)
        if shard.elsewhere is None:
            self._fail()
        elif shard.recovery.is_fenced or lost:
            self._host.map.forget(number, shard.epoch)
            # Nothing is left to do if it is on its way already.
            taken = self._host.take_out(number, shard)
            if taken is not None:
                drop = partial(self._drop_fenced, number, *taken)
                thread = shard.runtime.thread(f"fasti-drop-{number}", drop)
                self._drops.append(thread)
                thread.start()

    def _drop_fenced(self, number: int, shard: Shard, service: Service) -> None:
        with self._one_moves:
            # As text: who keeps the record keeps nothing of the shard.
            if shard.recovery.is_fenced:
                _log.warning("shard %d is led elsewhere by now: %s", number, str(shard.failure))
            else:
                _log.error("shard %d stops, the others go on: %s", number, str(shard.failure))
            self._let_go(number, shard, service)
            self._drops = [drop for drop in self._drops if drop.ident != threading.get_ident()]
        if self._host.on_fenced is not None:
            self._host.on_fenced(number)

    def await_drops(self) -> None:
        """Returns when all shards that were fenced are closed."""
        for drop in list(self._drops):
            drop.join()
