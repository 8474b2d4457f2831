"""Several broker processes on one machine, and this one, which looks after them.

`fasti serve --processes N`: the shards are dealt out to N processes, each of which is a broker of its own
(broker_child.py) with the whole map. Process 0 listens at the address that was given, which is the one for
newcomers; process k at the port that is k higher. The ports are kept by the supervisor while a process is
away. One HTTP process speaks for all.

Until all of them were ready once, one that can't start ends all with its error, as a single process would
end. From then on one that ends is started again, with pauses that grow while it ends soon, and the others
don't notice. SIGTERM and Ctrl-C stop all softly, a second one at once. SIGHUP starts one after the other
anew, each when the one before is ready (from a terminal that was closed it means the end, as for any
program). When the supervisor is killed, its processes stop by themselves,
and the next supervisor waits for them.

The main thread waits for signals and for reports of the threads that wait for processes, and does
everything else itself.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from fasti.broker.logs import fields
from fasti.broker.ports import reserve
from fasti.broker.threads import Threads
from fasti.doors.broker_child import STOPPING, UP, BrokerChild, ChildReport, why
from fasti.doors.http_child import HttpChild
from fasti.doors.lifetime import Asks, Ready, end, read_stdin_to_its_end
from fasti.doors.listening import bind, refusal
from fasti.doors.peer_folder import PROCESSES_LOCK, SUPERVISOR_LOCK, PeerFolder
from fasti.errors import DataDirLocked, FastiError, InvalidArgument
from fasti.settings.declared import SETTINGS
from fasti.settings.load import CONFIG_VARIABLE, ServeSettings
from fasti.settings.page import as_flags
from fasti.settings.peers import PeerMap, ProcessPlace, deal_out
from fasti.settings.values import Address
from fasti.storage.shard_folders import open_folders

_log = logging.getLogger("fasti.supervisor")

_HTTP_PATIENCE_S = 3.0
_LOCK_PAUSE_S = 0.05
# Beyond `stop_within`, which the processes keep to themselves.
_MARGIN_S = 5.0
_REPORT, _PARENT_GONE = "report", "end of stdin"
_ENDS = ("SIGTERM", "SIGINT", _PARENT_GONE)
_MEMORY_LEAST = 1 << 20


class _StoppedEarly(Exception):
    """A signal came before there was anything to stop."""


def supervise(
    settings: ServeSettings,
    ready: Callable[[Ready], None],
    changed: Callable[[dict[str, Any]], None] = lambda facts: None,
    until_stdin_ends: bool = False,
) -> None:
    """Runs the processes until a signal ends them. Raises what kept them from starting.

    For the main thread. `changed` is told of each process whenever its state has changed.
    """
    asks = Asks()
    asks.listen_to_signals(signal.SIGHUP)
    if until_stdin_ends:
        asks.when_ended(read_stdin_to_its_end, _PARENT_GONE)
    facts = fields(version=version("fasti"), pid=os.getpid(), data=settings.data)
    _log.info("starting", extra=facts)
    supervisor = Supervisor(settings, asks, ready, changed)
    try:
        supervisor.prepare()
        supervisor.run()
    except _StoppedEarly as word:
        _log.info("stopped", extra=fields(because=word))
    finally:
        supervisor.let_go()


class Supervisor:
    """`prepare`, `run` and `let_go`, in this order, in the main thread."""

    def __init__(
        self,
        settings: ServeSettings,
        asks: Asks,
        ready: Callable[[Ready], None],
        changed: Callable[[dict[str, Any]], None],
    ) -> None:
        self._settings, self._asks = settings, asks
        self._ready, self._changed = ready, changed
        self._reports: deque[ChildReport] = deque()
        self._children: list[BrokerChild] = []
        self._reservations: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self._folder: PeerFolder | None = None
        self._locks: list[int] = []
        self._http: HttpChild | None = None
        # Processes that are still to be started anew, in this order, after a SIGHUP.
        self._rolling: deque[BrokerChild] = deque()
        self._had_terminal = has_terminal()
        self._was_ready = False
        self._stop_by: float | None = None
        self._failure: FastiError | None = None

    # Before the first process

    def prepare(self) -> None:
        """The directory, the locks, the ports. Raises what a person can act on."""
        settings = self._settings
        folders = open_folders(settings.data, settings.shards)
        count = settings.processes
        if count > folders.shards:
            raise InvalidArgument(
                f"processes is {count}, and {settings.data} has {folders.shards} "
                f"shard{'s' if folders.shards > 1 else ''}: a process needs one to serve. A new "
                "directory gets as many as `shards` says",
                field="processes",
                limit=folders.shards,
            )
        self._folder = PeerFolder(settings.data)
        self._locks.append(self._folder.lock(SUPERVISOR_LOCK))
        inherited = self._wait_for_lock(self._folder)
        self._locks.append(inherited)
        addresses = self._keep_ports(count)
        if settings.http is not None:
            self._listener = bind(settings.http, _HTTP_PATIENCE_S)
        peers = self._map(addresses, folders.shards)
        for number, (place, listen) in enumerate(zip(peers.processes, addresses, strict=True)):
            flags = child_flags(settings, peers, place, listen, number)
            self._children.append(
                BrokerChild(number, place, flags, _environment(), [inherited], self._report)
            )

    def _wait_for_lock(self, folder: PeerFolder) -> int:
        """Until the processes of a supervisor that was killed have ended."""
        deadline = time.monotonic() + self._settings.stop_within_us / 1e6 + _MARGIN_S
        waits = False
        while True:
            try:
                return folder.lock(PROCESSES_LOCK)
            except DataDirLocked:
                if time.monotonic() >= deadline:
                    raise
            if not waits:
                waits = True
                _log.warning("waiting for processes of a supervisor that is gone to stop")
            if (word := self._asks.next_within(_LOCK_PAUSE_S)) in _ENDS:
                raise _StoppedEarly(word)

    def _keep_ports(self, count: int) -> list[Address]:
        listen = self._settings.listen
        try:
            self._reservations = reserve(listen, count)
        except OSError as error:
            host, _, port = str(error.filename).rpartition(":")
            raise refusal(Address(host.strip("[]"), int(port)), error) from error
        ports = [reservation.getsockname()[1] for reservation in self._reservations]
        return [Address(listen.host, port) for port in ports]

    def _map(self, addresses: list[Address], shards: int) -> PeerMap:
        advertise = self._settings.advertise
        if advertise is None:
            return deal_out(shards, addresses)
        told = [Address(advertise.host, advertise.port + more) for more in range(len(addresses))]
        return deal_out(shards, told)

    def let_go(self) -> None:
        """Of ports, locks and whatever else is left."""
        if self._http is not None:
            self._http.stop()
        elif self._listener is not None:
            self._listener.close()
        for reservation in self._reservations:
            reservation.close()
        for lock in self._locks:
            os.close(lock)
        if self._folder is not None:
            self._folder.close()

    # The loop

    def run(self) -> None:
        """Starts all and returns when all have ended. Raises why they couldn't be started."""
        for child in self._children:
            if self._stop_by is None:
                self._start(child)
        while any(child.running for child in self._children) or self._stop_by is None:
            word = self._asks.next_within(self._pause_s())
            if word in _ENDS:
                self._stop(str(word))
            elif word == "SIGHUP" and self._had_terminal and not has_terminal():
                # It means the other thing that it is sent for: the terminal was closed.
                self._stop(word)
            elif word == "SIGHUP":
                self._roll_all()
            while self._reports:
                self._hear(self._reports.popleft())
            self._do_what_is_due()
        if self._failure is not None:
            raise self._failure
        _log.info("stopped")

    def _report(self, report: ChildReport) -> None:
        """In the threads that wait for processes."""
        self._reports.append(report)
        self._asks.put(_REPORT)

    def _pause_s(self) -> float | None:
        moments = [child.again_at for child in self._children if child.again_at is not None]
        if self._stop_by is not None:
            moments.append(self._stop_by)
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        if self._stop_by is not None and now >= self._stop_by:
            self._kill_all()
            self._stop_by = now + _MARGIN_S
        for child in self._children:
            if child.again_at is not None and child.again_at <= now:
                self._start(child)

    def _start(self, child: BrokerChild) -> None:
        try:
            child.start()
        except OSError as error:
            if not self._was_ready:
                self._fail(refusal_of_start(child, error))
                return
            pause_s = child.plan_restart()
            facts = fields(process=child.number, why=error.strerror, again_in_s=pause_s)
            _log.error("a process can't be started", extra=facts)
        self._tell(child)

    def _hear(self, report: ChildReport) -> None:
        child = self._children[report.number]
        if report.said is not None:
            child.heard(report.said)
            self._tell(child)
            if child.state == UP:
                self._is_up(child)
            return
        assert report.code is not None, "a report tells one of both"
        wanted = child.state == STOPPING
        child.ended()
        if self._stop_by is not None:
            if report.code:
                facts = fields(process=child.number, code=why(report.code))
                _log.warning("a process ended with an error", extra=facts)
        elif not self._was_ready:
            self._fail(child.why_not_ready(report.code))
        elif wanted:
            child.restart_at(time.monotonic())
        else:
            self._plan_restart(child, report.code)
        self._tell(child)

    def _plan_restart(self, child: BrokerChild, code: int) -> None:
        error = child.error
        pause_s = child.plan_restart()
        reason = why(code) if error is None else f"{error.code}: {error.message}"
        facts = child.facts()
        del facts["state"], facts["pid"]
        _log.error(
            "a process ended and will be started again",
            extra=fields(why=reason, again_in_s=pause_s, **facts),
        )

    def _is_up(self, child: BrokerChild) -> None:
        if not self._was_ready:
            if all(other.state == UP for other in self._children):
                self._say_ready()
        elif self._rolling and self._rolling[0] is child:
            self._rolling.popleft()
            self._roll_next()

    def _say_ready(self) -> None:
        self._was_ready = True
        settings, listen = self._settings, self._addresses()[0]
        if self._listener is not None:
            threads = Threads(settings.shard.stall_us / 1e6)
            self._http = HttpChild(self._listener, self._orders(), threads)
            for child in self._children:
                self._http.tell(child.number, child.facts())
            self._http.start()
        http = self._http.address if self._http else None
        _log.info(
            "ready",
            extra=fields(
                listen=str(listen),
                http=str(http or "off"),
                tls=settings.tls_cert is not None,
                credentials=bool(settings.credentials),
                processes=len(self._children),
                shards=sum(len(child.place.shards) for child in self._children),
            ),
        )
        seconds = max(child.recovery_seconds for child in self._children)
        self._ready(Ready(listen, http, os.getpid(), seconds))
        for child in self._children:
            self._tell(child)

    def _addresses(self) -> list[Address]:
        host = self._settings.listen.host
        return [Address(host, kept.getsockname()[1]) for kept in self._reservations]

    def _orders(self) -> dict[str, Any]:
        settings = self._settings
        tls = None
        if settings.tls_cert is not None:
            tls = [str(settings.tls_cert), str(settings.tls_key)]
        return {
            "data": str(settings.data),
            "processes": [
                {"process": child.number, "shards": list(child.place.shards)}
                for child in self._children
            ],
            "guarded": settings.credentials is not None,
            "tls": tls,
            "log_level": settings.log_level,
            "log_format": settings.log_format,
        }

    def _tell(self, child: BrokerChild) -> None:
        """The HTTP process, and whoever started this one."""
        if self._http is not None:
            self._http.tell(child.number, child.facts())
        if self._was_ready:
            self._changed(child.facts())

    # Anew, one after the other

    def _roll_all(self) -> None:
        if not self._was_ready or self._stop_by is not None:
            return
        under_way = bool(self._rolling)
        _log.info("starting the processes anew, one after the other")
        if under_way:
            # The one that is on its way has what changed, or not: it comes again behind the others.
            current = self._rolling[0]
            others = [child for child in self._children if child is not current]
            self._rolling = deque([current, *others, current])
        else:
            self._rolling = deque(self._children)
            self._roll_next()

    def _roll_next(self) -> None:
        """The next one, when the one before is ready."""
        if self._rolling:
            child = self._rolling[0]
            if child.state == UP:
                child.stop()
                self._tell(child)
            # One that waits for its restart, or begins, is new in a moment by itself.
            return
        if self._http is not None:
            self._http.restart()
        _log.info("all processes were started anew")

    # The end

    def _fail(self, error: FastiError) -> None:
        """Before it was ready: all end, and this is why."""
        if self._failure is None:
            self._failure = error
        self._begin_to_stop()

    def _stop(self, word: str) -> None:
        if self._stop_by is None:
            within_s = self._settings.stop_within_us / 1e6
            _log.info("stopping", extra=fields(because=word, within_s=within_s))
            self._begin_to_stop()
        elif word in signal.Signals.__members__:
            _log.warning("ending at once", extra=fields(because=word))
            self._kill_all()
            self._end_at_once(128 + signal.Signals[word])

    def _begin_to_stop(self) -> None:
        if self._stop_by is not None:
            return
        self._stop_by = time.monotonic() + self._settings.stop_within_us / 1e6 + _MARGIN_S
        self._rolling.clear()
        for child in self._children:
            child.stop()
            self._tell(child)

    def _kill_all(self) -> None:
        for child in self._children:
            if child.running:
                child.stop(signal.SIGKILL)

    def _end_at_once(self, code: int) -> None:
        """When the processes that were killed are gone."""
        deadline = time.monotonic() + _MARGIN_S
        while any(child.running for child in self._children) and time.monotonic() < deadline:
            self._asks.next_within(deadline - time.monotonic())
            while self._reports:
                report = self._reports.popleft()
                if report.code is not None:
                    self._children[report.number].ended()
        self.let_go()
        end(code)


def has_terminal() -> bool:
    """Whether this process belongs to a terminal that is open."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def refusal_of_start(child: BrokerChild, error: OSError) -> FastiError:
    """Of a process that the system didn't start."""
    return FastiError(f"process {child.number} can't be started: {error.strerror}")


def child_flags(
    settings: ServeSettings, peers: PeerMap, place: ProcessPlace, listen: Address, number: int
) -> list[str]:
    """The settings of one process: those of all, and its own part of what is shared."""
    advertise = settings.advertise
    values = {
        **settings.values,
        "shards": peers.shards,
        "processes": 1,
        "peers": peers,
        "serve_shards": place.shards,
        "listen": listen,
        "advertise": advertise and Address(advertise.host, advertise.port + number),
        "http": None,
        "memory": max(
            _MEMORY_LEAST, settings.shard.memory_bytes * len(place.shards) // peers.shards
        ),
        "metrics_series_max": max(1, settings.metrics_series_max // len(peers.processes)),
    }
    return as_flags(values)


def _environment() -> dict[str, str]:
    """Without the settings: the processes are given all of them as flags."""
    given = {setting.variable for setting in SETTINGS} | {CONFIG_VARIABLE}
    return {name: value for name, value in os.environ.items() if name not in given}
