"""`fasti cluster up`: NATS servers and brokers of one cluster on this machine, as long as this process runs.

The main thread starts and ends all processes and waits for words: that one is ready or has ended, that the
servers keep streams, that every shard has a leader, that a signal came. What must be asked again and again until it is
so has a thread, which ends with it. What dies is started again after a pause; before the cluster is up that has
a limit, since a mistake doesn't go away by itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fasti.doors.cluster_child import ClusterChild
from fasti.doors.cluster_plan import ClusterPlan
from fasti.doors.lifetime import Asks
from fasti.doors.nats_servers import (
    find_server,
    server_command,
    system_credentials,
    wait_for_servers,
    write_config,
)
from fasti.errors import FastiError, TimedOut, Unavailable
from fasti.settings.declared import SETTINGS
from fasti.settings.load import CONFIG_VARIABLE

CLUSTER = "local"
_START_S = 120.0
_BROKERS_STOP_S, _NATS_STOP_S, _KILL_S = 25.0, 10.0, 10.0
# Before the cluster is up, one that ended so often in a row won't do better.
_DEATHS_MAX = 4
_LOOK_S = 0.1
_SERVERS_ARE_THERE, _ALL_ARE_LED = "servers", "led"


class ClusterEvent(NamedTuple):
    """What happened, for programs (`to_json`) and in words."""

    event: str
    text: str
    facts: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """As `fasti cluster up --json` prints it."""
        return {"event": self.event, **self.facts}


class ClusterUp:
    """For the main thread, in which `tell` is called."""

    def __init__(self, plan: ClusterPlan, tell: Callable[[ClusterEvent], None]) -> None:
        """Raises an error if there is no `nats-server`."""
        self._plan, self._tell = plan, tell
        self._asks = Asks()
        self._over = threading.Event()
        self._up = False
        program, parent = find_server(), os.getpid()
        environment = child_environment()

        def child(name: str, command: Callable[[int], list[str]]) -> ClusterChild:
            log = plan.directory / f"{name}.log"
            return ClusterChild(name, command, log, self._asks.put, environment)

        configs = [write_config(plan, number) for number in range(len(plan.ports))]
        self._servers = [
            child(config.stem, partial(_server, program, config, parent)) for config in configs
        ]
        self._brokers = [
            child(f"b{number + 1}", partial(broker_command, plan, number, f"b{number + 1}"))
            for number in range(plan.brokers)
        ]

    # The loop

    def run(self) -> None:
        """Returns when a signal has ended it, softly. Raises what keeps it from beginning."""
        self._asks.listen_to_signals(signal.SIGHUP)
        give_up_at = time.monotonic() + _START_S
        counts = f"{_count(self._servers, 'NATS server')} and {_count(self._brokers, 'broker')}"
        self._say("starting", f"Starting {counts} in {self._plan.directory} ...")
        try:
            self._start(self._servers)
            self._watch(lambda: wait_for_servers(self._plan, self._over.is_set), _SERVERS_ARE_THERE)
            while True:
                word = self._asks.next_within(self._pause_s(give_up_at))
                if word in signal.Signals.__members__:
                    self._say(
                        "stopping",
                        "Stopping: first the brokers, then NATS. Once more ends it at once.",
                    )
                    return
                self._take(word)
                self._start(self._due())
                if not self._up and time.monotonic() > give_up_at:
                    raise TimedOut(
                        f"not every shard had a leader within {_START_S:g} s; "
                        f"the logs are in {self._plan.directory}"
                    )
        finally:
            self._over.set()
            self._stop(self._brokers, _BROKERS_STOP_S)
            self._stop(self._servers, _NATS_STOP_S)

    @property
    def _children(self) -> list[ClusterChild]:
        return [*self._servers, *self._brokers]

    def _pause_s(self, give_up_at: float) -> float | None:
        moments = [child.again_at for child in self._children if child.again_at is not None]
        moments += [] if self._up else [give_up_at]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _due(self) -> list[ClusterChild]:
        now = time.monotonic()
        children = self._children
        return [each for each in children if each.again_at is not None and each.again_at <= now]

    def _start(self, children: Iterable[ClusterChild]) -> None:
        for child in children:
            try:
                child.start()
            except OSError as error:
                raise FastiError(f"{child.name} can't be started: {error.strerror}") from error
            if self._up and child in self._servers:
                self._say_back(child)

    def _take(self, word: str | None) -> None:
        if word is None:
            return
        if word == _SERVERS_ARE_THERE:
            self._start(self._brokers)
            self._watch(self._wait_for_leaders, _ALL_ARE_LED)
        elif word == _ALL_ARE_LED:
            self._up = True
            pids = {child.name: child.pid for child in self._children}
            facts = {"directory": str(self._plan.directory), "address": self._plan.address}
            nats = {"nats": self._plan.nats_urls, "shards": self._plan.shards}
            self._say("up", self._greeting(), **facts, **nats, processes=pids)
        else:
            what, _, name = word.partition(" ")
            (child,) = (each for each in self._children if each.name == name)
            if what == "ended":
                self._take_end(child)
            elif self._up and child.deaths:
                self._say_back(child)

    def _take_end(self, child: ClusterChild) -> None:
        line = child.take_end()
        pause_s = child.plan_restart()
        if not self._up and child.deaths >= _DEATHS_MAX:
            raise Unavailable(f"{line}; its log is {child.log}")
        text = f"{line}; it is started again in {pause_s:g} s"
        self._say("ended", text, name=child.name, again_s=pause_s)

    def _say_back(self, child: ClusterChild) -> None:
        text = f"{child.name} is back, pid {child.pid}"
        self._say("back", text, name=child.name, pid=child.pid)

    def _say(self, event: str, text: str, **facts: Any) -> None:
        self._tell(ClusterEvent(event, text, facts))

    # What is waited for

    def _watch(self, wait: Callable[[], bool], word: str) -> None:
        def run() -> None:
            if wait():
                self._asks.put(word)

        threading.Thread(target=run, name="fasti-cluster-wait", daemon=True).start()

    def _wait_for_leaders(self) -> bool:
        """Whether every shard has one; False if it is over before."""
        # Imported here, while the servers and brokers start.
        from fasti.client.client import connect

        while not self._over.wait(_LOOK_S):
            try:
                with connect(self._plan.address, timeout="5s") as client:
                    while not self._over.wait(_LOOK_S):
                        view = client.transport.call("cluster")[0]
                        alive = [each for each in view["members"] if each["state"] == "alive"]
                        if not view["leaderless"] and len(alive) == self._plan.brokers:
                            return True
            except FastiError:
                continue
        return False

    def _greeting(self) -> str:
        plan = self._plan
        pids = ", ".join(f"{child.name} {child.pid}" for child in self._children)
        victim = self._brokers[0]
        others = "the others take its shards over, and it comes back"
        then = others if len(self._brokers) > 1 else "it comes back"
        return f"""\
A cluster runs in {plan.directory}: {plan.shards} shards. Ctrl-C stops it.
processes: {pids}

    export FASTI_ADDRESS={plan.address}

    fasti topics create emails
    fasti produce emails "hello"
    fasti consume emails
    fasti cluster status --watch
    kill -9 {victim.pid}    # {victim.name}: {then}
"""

    # The end

    def _stop(self, children: list[ClusterChild], within_s: float) -> None:
        """All of them, at once and softly; what doesn't end in time is killed, or when a second signal comes."""
        for child in children:
            child.stop()
        if not self._await_ends(children, within_s):
            for child in children:
                child.stop(signal.SIGKILL)
            self._await_ends(children, _KILL_S)

    def _await_ends(self, children: list[ClusterChild], within_s: float) -> bool:
        until = time.monotonic() + within_s
        while any(child.pid is not None for child in children):
            word = self._asks.next_within(max(0.0, until - time.monotonic()))
            if word in signal.Signals.__members__ or (word is None and time.monotonic() >= until):
                return False
            for child in self._children:
                if word == f"ended {child.name}" and child.pid is not None:
                    child.take_end()
                    child.again_at = None
        return True


def broker_command(plan: ClusterPlan, number: int, name: str, ready_fd: int) -> list[str]:
    """The broker that listens at the plan's address of this number."""
    values = {
        "data": plan.directory / name,
        "listen": plan.listens[number],
        "http": "off",
        "cluster": CLUSTER,
        "nats": ",".join(plan.nats_urls),
        "nats-replicas": len(plan.ports),
        "nats-system-credentials": system_credentials(plan),
        "nats-journal-size": plan.journal_bytes,
        "shards": plan.shards,
        "broker-name": name,
    }
    command = [sys.executable, "-m", "fasti", "serve", "--until-stdin-ends"]
    command += ["--ready-fd", str(ready_fd)]
    return command + [part for key, value in values.items() for part in (f"--{key}", str(value))]


def _count(children: list[ClusterChild], noun: str) -> str:
    return f"{len(children)} {noun}{'' if len(children) == 1 else 's'}"


def _server(program: str, config: Path, parent: int, _: int) -> list[str]:
    """It tells nothing when it is ready: it is asked."""
    return server_command(program, config, parent)


def child_environment() -> dict[str, str]:
    """Without settings of the user's shell: they are not meant for these."""
    not_meant = {setting.variable for setting in SETTINGS} | {CONFIG_VARIABLE}
    return {name: value for name, value in os.environ.items() if name not in not_meant}
