"""The broker as a process: one shard behind its doors, from the first line of the log to the last.

It starts in an order in which nothing is said that isn't so: what can be wrong with
addresses, certificates and credentials is looked at first; then the directory is opened and
recovered, every path is run once, and only then do the ports answer and `ready` is said.

A signal ends it softly: readiness goes, sessions are told, what was handed over is answered, a
checkpoint is written. A second one ends it at once, which is as safe, and slower to start from. A
shard that has failed for good ends the process with the shard's error.

The main thread only waits for one of these (`Asks`). Everything else runs in the threads of the parts.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NoReturn

from fasti.broker.host import Host
from fasti.broker.liveness import Liveness
from fasti.broker.logs import fields
from fasti.broker.machine_clock import watch_settings
from fasti.broker.memory import give_memory_back
from fasti.broker.metrics.counts import Metrics
from fasti.broker.shard import Shard
from fasti.broker.shard_map import ShardMap
from fasti.doors.credentials import Credentials
from fasti.doors.flight import FlightDoor
from fasti.doors.guard import Guard
from fasti.doors.http_child import HttpChild
from fasti.doors.inner import InnerDoor
from fasti.doors.lifetime import Asks, Ready, end, read_stdin_to_its_end
from fasti.doors.listening import bind, check_free, read_authority, read_certificate
from fasti.doors.peer import PeerDoor, PeerLinks
from fasti.doors.peer_folder import PeerFolder
from fasti.doors.sockets import AcceptedSockets
from fasti.doors.warmup import warm_up
from fasti.errors import AlreadyExists, FastiError
from fasti.settings.load import ServeSettings
from fasti.settings.peers import PeerMap
from fasti.settings.values import Address
from fasti.storage.directory import shard_storages

if TYPE_CHECKING:
    from fasti.doors.cluster_process import ClusterProcess

_log = logging.getLogger("fasti.broker")

# Without it a thread in Python code may keep the others waiting for 5 ms.
_SWITCH_INTERVAL_S = 0.0005
_FILES_WANTED = 65_536
_HTTP_PATIENCE_S = 3.0
# How long streams have to end by themselves; those of clients that don't react end with us.
_STREAMS_END_S = 2.0

_FAILED, _STOPPED, _TOO_LATE = "failure", "stopped", "too late"
# Arrow's allocator gives memory back to the system when the main thread asks for it, and no other.
_GIVE_BACK = "give memory back"


class Broker:
    """A shard, its service and its doors. `start` and `stop` are for one thread."""

    def __init__(self, settings: ServeSettings, give_memory_back: Callable[[], None]) -> None:
        self._settings = settings
        self._give_memory_back = give_memory_back
        self.metrics = Metrics(series_max=settings.metrics_series_max)
        self.host: Host
        self._door: FlightDoor
        self._liveness: Liveness
        self._http: HttpChild | None = None
        self._inner: InnerDoor | None = None
        # In a cluster.
        self._cluster: ClusterProcess | None = None
        # With other processes beside this one.
        self._folder: PeerFolder | None = None
        self._links: PeerLinks | None = None
        self._peer_door: PeerDoor | None = None

    def start(self) -> Ready:
        """Returns when clients are served. Raises what a person can act on."""
        settings = self._settings
        tls = None
        if settings.tls_cert is not None and settings.tls_key is not None:
            tls = read_certificate(settings.tls_cert, settings.tls_key)
        client_ca = read_authority(settings.tls_client_ca) if settings.tls_client_ca else None
        credentials = Credentials(settings.credentials) if settings.credentials else None
        check_free(settings.listen)
        listener = bind(settings.http, _HTTP_PATIENCE_S) if settings.http else None
        seconds = self._open()
        try:
            warm_up(scraped=settings.http is not None)
            self._door = self._open_door(tls, credentials, client_ca)
            self.host.catch_up()
            if self._folder is not None:
                self._peer_door = PeerDoor(self._folder, self.host, credentials)
            self._liveness = Liveness(self.host, AcceptedSockets(self._door.port).hang_up)
            self._liveness.start()
        except BaseException:
            self.host.close_services()
            self.host.abandon()
            raise
        listen = Address(settings.listen.host, self._door.port)
        if self._cluster is not None:
            self._cluster.join(self.host, listen)
        if listener is not None:
            token = credentials.add("fasti-http") if credentials else ""
            if client_ca is not None:
                self._inner = InnerDoor(self.host, credentials)
            self._http = HttpChild(listener, self._orders(listen, token), self.host.threads)
            self._http.start()
        http = self._http.address if self._http else None
        return Ready(listen, http, os.getpid(), seconds)

    def _open(self) -> float:
        begin = time.monotonic()
        self.host = (
            self._host_of_directory() if self._settings.cluster is None else self._host_of_cluster()
        )
        # A sequencer that sleeps until something is due must learn that it is due already.
        watch_settings(self._wake, self.host.threads)
        self.metrics.recovery_seconds = time.monotonic() - begin
        return self.metrics.recovery_seconds

    def _host_of_directory(self) -> Host:
        settings = self._settings
        folders, storages = shard_storages(
            settings.data, settings.shards, settings.serve_shards, settings.clone
        )
        host = Host(
            storages,
            settings.shard,
            shards=folders.shards,
            cluster=folders.cluster,
            metrics=self.metrics,
        )
        if settings.peers is not None:
            self._join(host, settings.peers)
        return host

    def _host_of_cluster(self) -> Host:
        # Imported late: most brokers are in none.
        from fasti.doors.cluster_process import ClusterProcess

        self._cluster = ClusterProcess(self._settings)
        return self._cluster.make_host(self.metrics)

    def _join(self, host: Host, peers: PeerMap) -> None:
        """There are other processes: clients are told where, and shards can ask them."""
        numbers = range(peers.shards)
        host.map = ShardMap({n: str(peers.place_of(n).address) for n in numbers})
        host.address = host.map.address(host.numbers[0])
        self._folder = PeerFolder(self._settings.data)
        self._links = PeerLinks(self._folder, peers)
        host.peers = self._links

    def _wake(self) -> None:
        self.host.clock.now_us()
        for shard in self.host.all_shards():
            shard.wake()

    def _open_door(
        self,
        tls: tuple[bytes, bytes] | None,
        credentials: Credentials | None,
        client_ca: bytes | None,
    ) -> FlightDoor:
        address = self._settings.listen
        guarded = credentials is not None
        guard = Guard(self._settings.guard, self.metrics, guarded, self._give_memory_back)
        try:
            door = FlightDoor(
                self.host,
                address.host,
                address.port,
                tls,
                credentials,
                guard,
                client_ca,
                str(self._settings.advertise or ""),
            )
        except Exception as error:
            # It was free a moment ago: another process was faster, or gRPC wants something else.
            check_free(address)
            reason = (str(error).splitlines() or [repr(error)])[0]
            raise AlreadyExists(f"{address}: gRPC could not listen: {reason}") from error
        door.start()
        return door

    def _orders(self, listen: Address, token: str) -> dict[str, Any]:
        settings = self._settings
        tls = None
        if settings.tls_cert is not None:
            tls = [str(settings.tls_cert), str(settings.tls_key)]
        return {
            "broker": self._inner.path if self._inner else str(listen.near),
            "token": token,
            "tls": tls,
            "log_level": settings.log_level,
            "log_format": settings.log_format,
        }

    def stop(self) -> None:
        """Answers what was handed over, writes a checkpoint, ends the doors."""
        self.host.begin_stopping()
        self.host.close_services()
        self._liveness.stop()
        if self._cluster is not None:
            self._cluster.leave()
        # Calls that are under way end here; streams of clients that don't react would never.
        ended = threading.Thread(target=self._stop_doors, name="fasti-flight-stop", daemon=True)
        ended.start()
        ended.join(_STREAMS_END_S)
        self.host.close()
        ended.join(_STREAMS_END_S / 4)
        self._end_http()

    def _stop_doors(self) -> None:
        self._door.stop()
        if self._peer_door is not None:
            self._peer_door.stop()

    def abandon(self) -> None:
        """The shard has failed: clients that are connected are told, and nothing is written."""
        self.host.begin_stopping()
        self.host.close_services()
        self._liveness.stop()
        self._end_http()
        self.host.abandon()

    def _end_http(self) -> None:
        if self._http is not None:
            self._http.stop()
        if self._inner is not None:
            self._inner.stop()
        if self._links is not None:
            self._links.close()
        if self._cluster is not None:
            self._cluster.close()


def serve(
    settings: ServeSettings,
    ready: Callable[[Ready], None],
    until_stdin_ends: bool = False,
    ready_line: str = "ready",
) -> None:
    """Runs a broker until a signal ends it. Raises what kept it from starting or ended it.

    For the main thread. `until_stdin_ends`: as if by a signal, when the process that started it is gone.
    `ready_line` is what the log has when clients are served.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    _raise_file_limit()
    facts = fields(version=version("fasti"), pid=os.getpid(), data=settings.data)
    _log.info("starting", extra=facts)
    asks = Asks()
    broker = Broker(settings, lambda: asks.put(_GIVE_BACK))
    started = broker.start()
    for shard in broker.host.all_shards():
        _log_recovery(shard, started.recovery_seconds, broker.host.shards)
    _spare_the_collector()
    gc.callbacks.append(broker.host.note_collection)
    asks.listen_to_signals()
    asks.when_ended(broker.host.wait_ended, _FAILED)
    if until_stdin_ends:
        asks.when_ended(read_stdin_to_its_end, "end of stdin")
    places = {"listen": str(started.listen), "http": str(started.http or "off")}
    security = {"tls": settings.tls_cert is not None, "credentials": bool(settings.credentials)}
    _log.info(ready_line, extra=fields(**places, **security))
    ready(started)
    while (why := asks.next()) == _GIVE_BACK:
        give_memory_back()
    within_s = settings.stop_within_us / 1e6
    if why == _FAILED:
        _give_up(broker, asks, within_s)
    _log.info("stopping", extra=fields(because=why, within_s=within_s))
    _stop(broker.stop, asks, within_s)
    _log.info("stopped")


def _give_up(broker: Broker, asks: Asks, within_s: float) -> NoReturn:
    failure = broker.host.failure or FastiError("the shard ended")
    _log.critical("the shard failed for good", extra=fields(code=failure.code, why=failure))
    # Whatever made it fail may hold this up too, and the next start takes nothing from it.
    _stop(broker.abandon, asks, within_s)
    raise failure


def _stop(stop: Callable[[], None], asks: Asks, within_s: float) -> None:
    """Stops in a thread of its own, so that this one still hears signals: another one ends all."""
    timer = threading.Timer(within_s, lambda: asks.put(_TOO_LATE))
    timer.daemon = True
    timer.start()
    asks.when_ended(stop, _STOPPED)
    while (word := asks.next()) != _STOPPED:
        if word == _TOO_LATE:
            _log.warning("not done in time: the next start has more to replay")
            return
        if word in signal.Signals.__members__:
            _log.warning("ending at once", extra=fields(because=word))
            end(128 + signal.Signals[word])


def _log_recovery(shard: Shard, seconds: float, shards: int) -> None:
    which = {"shard": shard.place.number} if shards > 1 else {}
    topics = list(shard.engine.state.topics.values())
    live = sum(int(part.counts[1:5].sum()) for topic in topics for part in topic.partitions)
    _log.info(
        "recovered",
        extra=fields(
            **which,
            seconds=round(seconds, 3),
            topics=len(topics),
            messages=live,
            leases=shard.engine.memory.leases.active,
            replayed_bytes=shard.store.tail_bytes,
        ),
    )


def _spare_the_collector() -> None:
    """What is there by now stays: a full collection would walk it, and hold all threads up for 10 ms."""
    gc.collect()
    gc.freeze()


def _raise_file_limit() -> None:
    """A thousand sessions and as many mapped files need more than the usual 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_WANTED if hard == resource.RLIM_INFINITY else min(_FILES_WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        _log.warning("the limit on open files is low", extra=fields(limit=soft))
