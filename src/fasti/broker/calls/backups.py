"""Backups of a broker that runs: its files at one position, to whoever asks for them.

`begin_backup` holds the files where they are and tells which there are; reads with the call `backup`
bring them, at a bounded rate; `end_backup` lets them go. What is durable when it begins is in it, and
nothing later: blocks never change, and of the journal only frames up to that position are given.

Any thread.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fasti.broker.caller import EMBEDDED, Caller
from fasti.broker.calls import requests
from fasti.broker.calls.requests import Action, Answer, Header, PartOf, Parts, none
from fasti.broker.shares import SeenShare
from fasti.core.queries import ReadPosition
from fasti.errors import FastiError, Gone, InvalidArgument, NotFound
from fasti.protocol.schemas import BACKUP_CHUNKS
from fasti.runtime import Runtime
from fasti.storage.tools.backup import JOURNAL, StoredSource

if TYPE_CHECKING:
    from fasti.broker.service import Service
    from fasti.storage.store import ShardStore

NAMES_MAX = 10_000


class Backups:
    """Backups that are under way."""

    def __init__(self, service: Service) -> None:
        self._service, self._shard = service, service.placement.catalogue
        self._sources: dict[int, tuple[StoredSource, ShardStore]] = {}
        self._lock = threading.Lock()
        bound = service.shares.bound("backups under way", "backups_max")
        self.share = service.shares.backups = SeenShare(bound, self._shard.holds.by_owner)

    def begin(self, caller: Caller = EMBEDDED) -> tuple[int, StoredSource]:
        """Holds the files of now."""
        shard = self._shard
        self.share.check(caller)
        number = shard.holds.take(caller.name)
        try:
            # With durability `interval` what was answered may not be synced yet.
            decided = shard.ask(ReadPosition()).result()
            shard.committer.wait_durable(decided)
            # The manifest's files stay from here on, if it was in force when it was held.
            store = shard.store
            place = (store.manifest, store.version, shard.clock.now_us())
            size = shard.committer.written_bytes
            source = StoredSource(store.blocks, store.journal, *place, size)
        except BaseException:
            shard.holds.drop(number)
            raise
        with self._lock:
            self._sources = {n: s for n, s in self._sources.items() if self._is_held(n)}
            self._sources[number] = source, store
        return number, source

    def _is_held(self, number: int) -> bool:
        try:
            self._shard.holds.use(number)
        except Gone:
            return False
        return True

    def end(self, number: int) -> None:
        """Lets its files go."""
        self._shard.holds.drop(number)
        with self._lock:
            self._sources.pop(number, None)

    # Reads, as the service has them

    def plan(self, caller: Caller, descriptor: Header) -> tuple[pa.Schema, list[Header]]:
        """There is one way to read a backup: by its number."""
        raise InvalidArgument("a backup is begun by the action `begin_backup`", field="call")

    def read(self, caller: Caller, ticket: Header) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Pieces of the files that a ticket names."""
        fields = requests.checked(ticket, backup=int, names=[], rate=0)
        names = fields["names"]
        with self._lock:
            source, store = self._sources.get(fields["backup"], (None, None))
        if source is None or store is None:
            raise Gone(f"backup {fields['backup']} has ended: begin it again")
        if len(names) > NAMES_MAX:
            raise InvalidArgument("too many names", field="names", limit=NAMES_MAX)
        known = {*source.listing.blocks, JOURNAL}
        for name in names:
            if name not in known:
                raise InvalidArgument(f"the backup has no file {name!r}", field="names")
        pacer = _Pacer(self._service.runtime, self._rate(fields["rate"]))
        return BACKUP_CHUNKS, self._pieces(fields["backup"], source, store, names, pacer)

    def _rate(self, asked: int) -> int:
        limit = self._service.settings.backup_bytes_per_s
        if asked < 0:
            raise InvalidArgument("rate can't be negative", field="rate", limit=0)
        return min(asked, limit) if asked else limit

    def _pieces(
        self,
        number: int,
        source: StoredSource,
        store: ShardStore,
        names: list[str],
        pacer: _Pacer,
    ) -> Iterator[pa.RecordBatch]:
        holds = self._shard.holds
        try:
            for chunk in source.read(names):
                holds.use(number)
                yield pa.RecordBatch.from_pydict(
                    {
                        "name": [chunk.name],
                        "offset": [chunk.offset],
                        "data": pa.array([chunk.data], pa.binary()),
                    },
                    schema=BACKUP_CHUNKS,
                )
                pacer.wait(len(chunk.data))
        except (FastiError, ValueError) as error:
            if isinstance(error, (Gone, NotFound)) or self._shard.store is not store:
                message = "the broker's files have changed: begin the backup again"
                raise Gone(message) from error
            raise


class _Pacer:
    """Spreads reads over time, so that they don't stand in the way of the journal."""

    def __init__(self, runtime: Runtime, bytes_per_s: int) -> None:
        self._runtime, self._rate = runtime, bytes_per_s
        self._free_at = runtime.monotonic()

    def wait(self, size_bytes: int) -> None:
        """After a piece of that size."""
        now = self._runtime.monotonic()
        self._free_at = max(self._free_at, now) + size_bytes / self._rate
        self._runtime.sleep(self._free_at - now)


def _begin(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    requests.checked(header)
    none(parts)
    # Whatever was answered before this call is durable, and so in it.
    number, source = service.backups.begin(caller)
    listing: dict[str, Any] = source.listing.to_dict()
    manifest = base64.b64encode(source.listing.manifest).decode()
    return {"backup": number, **listing, "manifest": manifest}, []


def _end(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    service.backups.end(requests.checked(header, backup=int)["backup"])
    return {}, []


ACTIONS: dict[str, Action] = {"begin_backup": _begin, "end_backup": _end}
TRANSACTION_PARTS: dict[str, PartOf] = {}
