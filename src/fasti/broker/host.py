"""The shards of one process, each with a service of its own, and what they share.

Doors and embedded clients ask a host for the service of a shard by its number (`service`); a shard that
another process has answers `moved`. With one shard there is nothing to ask: a call may name it, and
needn't. The clock, the watchdog and the shares of callers are the process's, not a shard's.

A shard that fails for good ends the process, as it does where there is only one: a start is what loads it
again, and the shards of other processes don't notice.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from fasti.broker.calls.subscription import Subscription
from fasti.broker.catalogue import Catalogue
from fasti.broker.lending import Lender
from fasti.broker.metrics.counts import Metrics
from fasti.broker.peers import Peers
from fasti.broker.placement import OneShard
from fasti.broker.service import Header, Service
from fasti.broker.shard import Shard
from fasti.broker.shard_map import ShardMap
from fasti.broker.shared_parts import SharedParts
from fasti.broker.shares import LeaseShare, Shares
from fasti.config import ShardSettings
from fasti.core.layout import ShardPlace
from fasti.errors import FastiError, InvalidArgument, Moved
from fasti.runtime import Runtime
from fasti.storage.storage_engine import StorageEngine

SHARD_NUMBER = "shard_number"
# About the process: any of its shards may answer.
PROCESS_ACTIONS = frozenset(("hello", "clock", "accept_clock", "health", "metrics"))


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

        Raises what opening a shard raises; then none is open.
        """
        self.settings = settings or ShardSettings()
        self.shards, self.cluster = shards, cluster
        self.numbers = sorted(storages)
        # Replaced as a whole when it changes.
        self.map = ShardMap()
        # Set before anything is served, where other processes have shards.
        self.peers: Peers | None = None
        self.metrics = metrics or Metrics()
        self.stopping = False
        self.shared = SharedParts(self.settings, runtime, parks=True) if shards > 1 else None
        self.catalogue: Catalogue | None = None
        self._lender: Lender | None = None
        self._shards: dict[int, Shard] = {}
        self.services: dict[int, Service] = {}
        try:
            for number in self.numbers:
                self._shards[number] = self._open(number, storages[number], runtime)
            self._make_services(threaded)
            # What answers for the process, and the only one there is.
            self.first = self.services[self.numbers[0]]
            if self.shared is not None:
                self.shared.start()
                self._lender = Lender(
                    self.shared.threads, self.settings.memory_bytes, self.all_shards()
                )
                self._lender.start()
                self.catalogue = Catalogue(self)
                self.catalogue.start()
        except BaseException:
            self._undo()
            raise
        self._only = self.first if shards == 1 else None
        self.threads, self.clock = self.first.threads, self.first.clock
        self.limits = self.settings.limits

    def _open(self, number: int, storage: StorageEngine, runtime: Runtime | None) -> Shard:
        place = ShardPlace(number, self.shards)
        shard = Shard(storage, self.settings, runtime, place=place, shared=self.shared)
        if self.shared is not None:
            # An equal part, until it is known who needs more.
            shard.memory_bytes = self.settings.memory_bytes // len(self.numbers)
            shard.engine.memory.budget_bytes = shard.memory_bytes
        return shard

    def _make_services(self, threaded: bool) -> None:
        if self.shards == 1:
            shard = self._shards[self.numbers[0]]
            self.services[self.numbers[0]] = Service(OneShard(shard), self.metrics, threaded)
            return
        placement = _OfProcess(list(self._shards.values()))
        shares = Shares(placement)
        shares.leases = LeaseShare(placement)
        for number, shard in self._shards.items():
            metrics = self.metrics.of_shard(len(self._shards))
            self.services[number] = Service(OneShard(shard), metrics, threaded, self, shares)

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
        """The service of a shard. Raises `moved` if another process has it, `invalid_argument`."""
        service = self.services.get(number)
        if service is not None:
            return service
        if not 0 <= number < self.shards:
            raise InvalidArgument(
                f"there is no shard {number}: there are {self.shards}", field=SHARD_NUMBER
            )
        address = self.map.address(number)
        where = f"at {address}" if address else "elsewhere"
        raise Moved(
            f"shard {number} is {where}",
            details={"shard": number, "address": address, "epoch": self.map.epoch},
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

    def service_for(self, action: str, header: Header) -> Service:
        """As `service_of`, for an action: those about the process needn't name a shard."""
        if action in PROCESS_ACTIONS and header.get(SHARD_NUMBER) is None:
            header.pop(SHARD_NUMBER, None)
            return self.first
        return self.service_of(header)

    def all_shards(self) -> Sequence[Shard]:
        """The shards of this process, by number."""
        return [self._shards[number] for number in self.numbers]

    def all_services(self) -> Sequence[Service]:
        """Their services, by number."""
        return [self.services[number] for number in self.numbers]

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
        return {**told, "map": self.map.to_json(self.shards)}

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
        for shard in self.all_shards():
            shard.close()
        self._stop_shared()

    def abandon(self) -> None:
        """A shard has failed: nothing is written any more."""
        for shard in self.all_shards():
            with suppress(FastiError):
                shard.close(checkpoint=False)
        self._stop_shared()

    def _stop_shared(self) -> None:
        if self.shared is not None:
            self.shared.stop()

    def wait_ended(self) -> None:
        """Returns when one of the shards takes nothing any more: closed, or failed for good."""
        ended = threading.Event()
        for shard in self.all_shards():
            shard.when_ended(ended.set)
        ended.wait()

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


class _OfProcess:
    """A placement for what is shared by all shards of a process."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards
        self.catalogue = shards[0]

    def shard_of(self, topic: str, partition: int = 0) -> Shard:
        return self.catalogue

    def shards(self) -> Sequence[Shard]:
        return self._shards
