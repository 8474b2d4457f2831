"""The shards of one process, each with a service of its own, and what they share.

Doors and embedded clients ask a host for the service of a shard by its number (`service`); a shard that
another process has answers `moved`. With one shard there is nothing to ask: a call may name it, and
needn't. The clock, the watchdog and the shares of callers are the process's, not a shard's.

Where there are several, shards come and leave while the process serves (`add`, `drop`), down to none at all:
what is about the process is answered by its lobby. A shard whose storage says that another process leads it
(`fenced`, see recovery.py) is dropped by itself, and the others go on. One that fails for good in any other
way ends the process, as it does where there is only one: a start is what loads it again, and the shards of
other processes don't notice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fasti.broker.calls.subscription import Subscription
from fasti.broker.catalogue import Catalogue
from fasti.broker.lending import Lender
from fasti.broker.lobby import PROCESS_ACTIONS, Lobby
from fasti.broker.metrics.counts import Metrics
from fasti.broker.moves import Moves
from fasti.broker.peers import Peers
from fasti.broker.placement import OneShard
from fasti.broker.service import Header, Service
from fasti.broker.shard import Shard
from fasti.broker.shard_map import ShardMap, moved
from fasti.broker.shared_parts import SharedParts
from fasti.broker.shares import LeaseShare, Shares
from fasti.broker.stale import StaleService, StaleShard, of_standby
from fasti.config import ShardSettings
from fasti.core.layout import ShardPlace
from fasti.errors import FastiError, InvalidArgument
from fasti.protocol.schemas import SHARD_NUMBER as SHARD_NUMBER
from fasti.protocol.schemas import STALE_ACTIONS, STALE_READS
from fasti.runtime import Runtime
from fasti.storage.storage_engine import StorageEngine


class Host:
    """Opens its shards when it is made. Any thread may ask; `close` and `abandon` are for one."""

    def __init__(
        self,
        storages: Mapping[int, StorageEngine],
        settings: ShardSettings | None = None,
        *,
        shards: int = 1,
        cluster: str = "",
        metrics: Metrics | None = None,
        runtime: Runtime | None = None,
        threaded: bool = True,
    ) -> None:
        """`storages` are those of the shards that this process has, by number, of so many `shards`.

        Where there are several shards it may have none. Raises what opening a shard raises; then none is open.
        """
        self.settings = settings or ShardSettings()
        self.limits = self.settings.limits
        self.shards, self.cluster = shards, cluster
        self.map = ShardMap()
        # Where clients of other processes find this one; None: not known here.
        self.address: str | None = None
        # Set before anything is served, where other processes have shards.
        self.peers: Peers | None = None
        # In a cluster: what of the memory budget the standbys of other brokers' shards have.
        self.standby_bytes: Callable[[], int] = lambda: 0
        # And which of those can be read from; and where other brokers have some, as far as is known.
        self.find_standby: Callable[[int], StaleShard | None] = lambda number: None
        self.standby_addresses: Callable[[int], list[str]] = lambda number: []
        # In a cluster: what the action `cluster` answers.
        self.cluster_view: Callable[[], dict[str, Any]] | None = None
        # And `drain`, with the broker's name and whether it is undone.
        self.cluster_drain: Callable[[str, bool], dict[str, Any]] | None = None
        # In a cluster: what an operator must know of its storage, in sentences.
        self.alarms: Callable[[], list[str]] = list
        # Set where another process may lead what this one can't: called with the number of a shard that was
        # dropped because its storage is fenced, or has lost what it needs, when it is closed.
        self.on_fenced: Callable[[int], None] | None = None
        self.metrics = metrics or Metrics()
        self.stopping = False
        self._runtime, self._threaded = runtime, threaded
        self.shared = SharedParts(self.settings, runtime, parks=True) if shards > 1 else None
        self.catalogue: Catalogue | None = None
        self._lender: Lender | None = None
        # Both are replaced as a whole.
        self._lock = threading.Lock()
        self._shards: dict[int, Shard] = {}
        self.services: dict[int, Service] = {}
        self._ended = threading.Event()
        self._moves = Moves(self, self._ended.set)
        self._only: Service | None = None
        # What answers for the process.
        self.first: Service | Lobby
        try:
            for number in sorted(storages):
                self._shards[number] = self.open_shard(number, storages[number], len(storages))
            self._begin(self._shards)
        except BaseException:
            self._undo()
            raise
        self.threads, self.clock = self.first.threads, self.first.clock

    def _begin(self, shards: Mapping[int, Shard]) -> None:
        if self.shared is None:
            ((number, shard),) = shards.items()
            self.first = self._only = Service(OneShard(shard), self.metrics, self._threaded)
            self.services = {number: self._only}
            shard.when_ended(self._ended.set)
            return
        placement = _OfProcess(self)
        self._shares = Shares(placement)
        self._shares.leases = LeaseShare(placement)
        self.first = Lobby(self, self.shared, self._shares)
        self.threads = self.shared.threads
        for number, shard in shards.items():
            self.services[number] = self.make_service(shard, len(shards))
            shard.when_ended(partial(self._moves.note_end, number, shard))
        self.shared.start()
        self._lender = Lender(self.shared.threads, self.settings.memory_bytes, self.all_shards())
        self._lender.beside_bytes = lambda: self.standby_bytes()
        self._lender.start()
        self.catalogue = Catalogue(self)
        self.catalogue.start()

    def open_shard(self, number: int, storage: StorageEngine, beside: int) -> Shard:
        """One of so many, which is not served yet."""
        place = ShardPlace(number, self.shards)
        shard = Shard(storage, self.settings, self._runtime, place=place, shared=self.shared)
        if self.shared is not None:
            shard.whereabouts = lambda: self.map.leader(number)
            # An equal part, until it is known who needs more.
            shard.memory_bytes = self.settings.memory_bytes // beside
            shard.engine.memory.budget_bytes = shard.memory_bytes
        return shard

    def make_service(self, shard: Shard, beside: int) -> Service:
        """For one of so many."""
        metrics = self.metrics.of_shard(beside)
        return Service(OneShard(shard), metrics, self._threaded, self, self._shares)

    # Shards that come and leave

    def add(self, number: int, storage: StorageEngine, epoch: int | None = None) -> None:
        """Opens a shard, which this process leads from now on, and serves it; under this epoch, or its journal's.

        Returns when calls are answered. Raises what opening it raises, `already_exists` if it is here,
        `invalid_argument` where there is only one shard, or none of that number.
        """
        self._moves.add(number, storage, epoch)

    def drop(
        self, number: int, to_address: str | None, epoch: int, checkpoint: bool = False
    ) -> None:
        """Hands a shard over to the process at that address, which will lead it under this epoch.

        None: it is not known to whom, after this epoch. Nothing new is admitted, what was is answered,
        sessions are told; returns when its storage is closed, with a last `checkpoint` if asked for. If the
        storage turns out to be fenced on the way, what is not durable answers `moved`. Of a shard that is not
        here it is only noted where it is. Raises `invalid_argument` as `add` does.
        """
        self._moves.drop(number, to_address, epoch, checkpoint)

    def put_in(self, number: int, shard: Shard, service: Service) -> None:
        """From now on calls for it are answered here."""
        with self._lock:
            self._shards = {**self._shards, number: shard}
            self.services = {**self.services, number: service}
        self._share_out()
        shard.when_ended(partial(self._moves.note_end, number, shard))

    def take_out(self, number: int, only: Shard | None = None) -> tuple[Shard, Service] | None:
        """From now on calls for it are answered `moved`. None if it is not here, or is not `only` that one."""
        with self._lock:
            shard, service = self._shards.get(number), self.services.get(number)
            if shard is None or service is None or (only is not None and shard is not only):
                return None
            self._shards = {n: each for n, each in self._shards.items() if n != number}
            self.services = {n: each for n, each in self.services.items() if n != number}
        self._share_out()
        return shard, service

    def _share_out(self) -> None:
        """The shards are others now: nothing that all have in common keeps one that has left."""
        if self._lender is not None:
            self._lender.divide_among(self.all_shards())
        for service in self.all_services()[:1]:
            self._shares.snapshots = service.snapshots.share
            self._shares.backups = service.backups.share

    def catch_up(self) -> None:
        """Has the shards of this process ask what topics there are, where another has shard 0.

        Before anything is served; one that can't ask now is told later.
        """
        if self.catalogue is not None:
            for service in self.all_services():
                self.catalogue.catch_up(service)

    def _undo(self) -> None:
        self._stop_own()
        for service in self.services.values():
            service.close()
        for shard in self._shards.values():
            shard.close(checkpoint=False)
        self._stop_shared()

    def _stop_own(self) -> None:
        if self.catalogue is not None:
            self.catalogue.stop()
        if self._lender is not None:
            self._lender.stop()

    # Which service

    def service(self, number: int) -> Service:
        """The service of a shard. Raises `moved` if another process has it, `invalid_argument`.

        Waits a moment for a shard that comes here now: whoever was sent here would have to come back for it.
        """
        service = self.services.get(number)
        if service is None and self._moves.await_opening(number):
            service = self.services.get(number)
        if service is not None:
            return service
        self.check_number(number)
        raise moved(number, self.map.leader(number))

    def check_number(self, number: int) -> None:
        """Raises `invalid_argument` if there is no such shard."""
        if not 0 <= number < self.shards:
            raise InvalidArgument(
                f"there is no shard {number}: there are {self.shards}", field=SHARD_NUMBER
            )

    def service_of(self, header: Header) -> Service:
        """The service that a request is for, by its `shard_number`, which is taken out of it."""
        number = header.pop(SHARD_NUMBER, None)
        if number is None:
            if self._only is not None:
                return self._only
            raise InvalidArgument(
                f"there are {self.shards} shards: {SHARD_NUMBER} says which one is meant",
                field=SHARD_NUMBER,
            )
        if type(number) is not int:
            raise InvalidArgument(f"{SHARD_NUMBER!r} must be a JSON integer", field=SHARD_NUMBER)
        return self.service(number)

    def service_for(self, action: str, header: Header) -> Service | Lobby | StaleService:
        """As `service_of`, for an action: those about the process needn't name a shard.

        A read that may be stale is for whoever follows the shard as well.
        """
        if action in PROCESS_ACTIONS and header.get(SHARD_NUMBER) is None:
            header.pop(SHARD_NUMBER, None)
            return self.first
        stale = of_standby(self, header, action, STALE_ACTIONS)
        return self.service_of(header) if stale is None else stale

    @property
    def numbers(self) -> list[int]:
        """The shards that this process leads."""
        return sorted(self.services)

    def all_shards(self) -> Sequence[Shard]:
        """The shards of this process, by number."""
        return [shard for _, shard in sorted(self._shards.items())]

    def all_services(self) -> Sequence[Service]:
        """Their services, by number."""
        return [service for _, service in sorted(self.services.items())]

    def note_collection(self, phase: str, info: dict[str, int]) -> None:
        """The collector of garbage begins or ends: the lowest shard keeps that among its stalls."""
        for shard in self.all_shards()[:1]:
            shard.stalls.collector(phase, info)

    def subscriptions(self) -> dict[int, Subscription]:
        """The consumers' sessions of all shards, for whoever watches them."""
        if self._only is not None:
            return self._only.subscriptions()
        services = self.all_services()
        return dict(enumerate(s for each in services for s in each.subscriptions().values()))

    def metrics_text(self) -> str:
        """The page of the whole process."""
        # Imported late: a broker is ready sooner without it.
        from fasti.broker.metrics.host_page import write

        return write(self)

    def hello(self) -> dict[str, Any]:
        """What `hello` tells of the shards; nothing where there is one."""
        if self.shards == 1:
            return {}
        told = {"shards": self.shards, "cluster": self.cluster}
        places = self.map.to_json(self.shards, self.services)
        for place in places:
            if standbys := self.standby_addresses(place["shard"]):
                place["standbys"] = standbys
        return {**told, "map": places}

    # The end

    def begin_stopping(self) -> None:
        """Nothing new is taken; sessions are told."""
        self.stopping = True
        for service in self.all_services():
            service.begin_stopping()

    def close_services(self) -> None:
        """Ends what works by itself beside the shards; behind `begin_stopping`."""
        self._stop_own()
        for service in self.all_services():
            service.close()

    def close(self) -> None:
        """Answers what was handed over, writes last checkpoints, and lets the storages go."""
        self._moves.await_drops()
        for shard in self.all_shards():
            shard.close()
        self._stop_shared()

    def abandon(self) -> None:
        """A shard has failed: nothing is written any more."""
        self._moves.await_drops()
        for shard in self.all_shards():
            with suppress(FastiError):
                shard.close(checkpoint=False)
        self._stop_shared()

    def _stop_shared(self) -> None:
        if self.shared is not None:
            self.shared.stop()

    def wait_ended(self) -> None:
        """Returns when one of the shards takes nothing any more, and has not left: closed, or failed."""
        self._ended.wait()

    @property
    def failure(self) -> FastiError | None:
        """Why a shard of this process has ended, if one has failed."""
        for shard in self.all_shards():
            if shard.failed:
                return shard.failure
        return None


class OneService:
    """For a door before a service without a host: it has one shard."""

    def __init__(self, service: Service) -> None:
        self.first, self.metrics = service, service.metrics

    def service_of(self, header: Header) -> Service:
        """The only one. Raises `invalid_argument` for another number than 0."""
        number = header.pop(SHARD_NUMBER, None)
        if number is not None and (type(number) is not int or number != 0):
            raise InvalidArgument("there is one shard, with the number 0", field=SHARD_NUMBER)
        return self.first

    def service_for(self, action: str, header: Header) -> Service:
        """The same for every action."""
        return self.service_of(header)


def reader_of(shards: Host | OneService, ticket: Header) -> Service | StaleService:
    """As `service_of`, for a read that streams; one that may be stale is for whoever follows as well."""
    stale = None
    if isinstance(shards, Host):
        stale = of_standby(shards, ticket, ticket.get("call"), STALE_READS)
    return shards.service_of(ticket) if stale is None else stale


class _OfProcess:
    """A placement for what is shared by all shards of a process."""

    def __init__(self, host: Host) -> None:
        assert host.shared is not None
        self.settings, self.clock = host.settings, host.shared.clock
        self._host = host

    @property
    def catalogue(self) -> Shard:
        """The lowest. Nothing that is shared asks for it while there is none."""
        return self.shards()[0]

    def shard_of(self, topic: str, partition: int = 0) -> Shard:
        return self.catalogue

    def shards(self) -> Sequence[Shard]:
        return self._host.all_shards()
