"""A broker as its HTTP process sees it: one process, or several that it speaks for as one.

Every answer is asked of the broker's processes at that moment, of all at a time. What the supervisor knows
of them (`note`) is added: a process that it is about to start again has not to be waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

from fasti.doors.broker_child import ENDED, STARTING, UP, WAITING
from fasti.doors.link import BrokerLink
from fasti.doors.metric_pages import merge_pages
from fasti.errors import FastiError, Unauthenticated, Unavailable
from fasti.settings.peers import show_shards

_Answer = TypeVar("_Answer")
# Asked at a time; more would only wait for each other.
_ASKED_MAX = 32
# Of the states of several processes, the one that stands for all.
_WORST_FIRST = ("failed", "not answering", "restarting", "starting", "stopping")
_STATES = {STARTING: "starting", WAITING: "restarting", ENDED: "stopping"}
_OF_PROCESSES = """\
# HELP fasti_process_up Whether a process of the broker serves its shards.
# TYPE fasti_process_up gauge
{up}# HELP fasti_process_restarts_total How often the supervisor started a process again.
# TYPE fasti_process_restarts_total counter
{restarts}"""


class AskedBroker(Protocol):
    """What the HTTP application asks. Any thread."""

    @property
    def guarded(self) -> bool:
        """Whether the broker asks for tokens."""

    def health(self) -> dict[str, Any]:
        """As the action `health` answers. Raises `FastiError`."""

    def is_alive(self, health: Mapping[str, Any]) -> bool:
        """Whether it is no use to start the broker again."""

    def metrics(self, token: str) -> str:
        """A page in Prometheus' text format. Raises `FastiError`."""


class OneProcess:
    """A broker that is one process."""

    def __init__(self, link: BrokerLink) -> None:
        self._link = link
        self.guarded = link.guarded

    def health(self) -> dict[str, Any]:
        return self._link.call("health")

    def is_alive(self, health: Mapping[str, Any]) -> bool:
        return is_well(health)

    def metrics(self, token: str) -> str:
        text: str = self._link.call("metrics", token)["text"]
        return text


def is_well(health: Mapping[str, Any]) -> bool:
    """Whether a process is alive: its shards have not failed, its threads work."""
    return health["state"] not in ("failed", "not answering") and "threads" not in health


class Member(NamedTuple):
    """One of several processes."""

    number: int
    shards: Sequence[int]
    link: BrokerLink


class SeveralProcesses:
    """A broker that is several processes under a supervisor, which started this one."""

    def __init__(self, members: Sequence[Member], guarded: bool) -> None:
        self.guarded = guarded
        self._members = members
        self._pool = ThreadPoolExecutor(min(len(members), _ASKED_MAX), "fasti-ask")
        self._lock = threading.Lock()
        self._known: dict[int, dict[str, Any]] = {}

    def note(self, facts: dict[str, Any]) -> None:
        """The supervisor's word about a process."""
        with self._lock:
            self._known[int(facts["process"])] = facts

    def _facts(self, number: int) -> dict[str, Any]:
        with self._lock:
            return self._known.get(number, {})

    def _of_all(self, ask: Callable[[Member], _Answer]) -> list[_Answer]:
        return list(self._pool.map(ask, self._members))

    # Health

    def health(self) -> dict[str, Any]:
        """Ready if all are; the state of the one that is worst, and what each of them says."""
        each = self._of_all(self._health_of)
        states = {health["state"] for health in each}
        state = next((worst for worst in _WORST_FIRST if worst in states), "serving")
        whole: dict[str, Any] = {"ready": all(health["ready"] for health in each), "state": state}
        troubled = [health for health in each if not health["ready"]] or each
        if reasons := [health["reason"] for health in troubled if "reason" in health]:
            whole["reason"] = reasons[0]
        if threads := [
            {**thread, "process": health["process"]}
            for health in each
            for thread in health.get("threads", ())
        ]:
            whole["threads"] = threads
        return {**whole, "processes": each}

    def _health_of(self, member: Member) -> dict[str, Any]:
        named = {"process": member.number, "shards": show_shards(member.shards)}
        facts = self._facts(member.number)
        named["restarts"] = facts.get("restarts", 0)
        known = facts.get("state", UP)
        if known in _STATES:
            return {**named, "ready": False, "state": _STATES[known], "reason": "process_down"}
        try:
            return {**named, **member.link.call("health")}
        except FastiError as error:
            said = {"ready": False, "state": "not answering", "reason": "process_down"}
            return {**named, **said, "why": error.message}

    def is_alive(self, health: Mapping[str, Any]) -> bool:
        """One that the supervisor starts again is in good hands."""
        return all(is_well(process) for process in health["processes"])

    # Metrics

    def metrics(self, token: str) -> str:
        """The pages of those that answer. Raises `unavailable` if none does."""
        pages: dict[int, str] = {}
        for member, page in zip(self._members, self._of_all(self._page(token)), strict=True):
            if isinstance(page, str):
                pages[member.number] = page
            elif isinstance(page, Unauthenticated):
                raise page
        if not pages:
            raise Unavailable("no process of the broker answers")
        up, restarts = "", ""
        for member in self._members:
            labels = f'{{process="{member.number}"}}'
            up += f"fasti_process_up{labels} {float(member.number in pages)}\n"
            count = self._facts(member.number).get("restarts", 0)
            restarts += f"fasti_process_restarts_total{labels} {float(count)}\n"
        return merge_pages(pages) + _OF_PROCESSES.format(up=up, restarts=restarts)

    def _page(self, token: str) -> Callable[[Member], str | FastiError]:
        def ask(member: Member) -> str | FastiError:
            if self._facts(member.number).get("state", UP) in _STATES:
                return Unavailable("it does not run")
            try:
                text: str = member.link.call("metrics", token)["text"]
                return text
            except FastiError as error:
                return error

        return ask
