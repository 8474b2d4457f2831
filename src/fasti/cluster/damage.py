"""Which server's copy of which stream is damaged: the rules, and the book of what was found.

A NATS server drops what it can't read, without a word; when it leads the stream it says that there is nothing,
and a copy that follows it drops the same. Two things give it away:

- Its own state (`server_reports.py`). A journal has no gaps: messages = last - first + 1, nothing deleted. A copy
  whose beginning is missing, or that stays where it is while the stream goes on, is damaged if it is so in
  two looks: for a moment each copy may lag.
- What it really has. After a clean stop a server believes its index and not its files: flipped bits change
  nothing of its state, not even when it leads and answers "not found" (tried with 2.15.1). So each copy is read
  through by a consumer on its server (`roll_call.py`), and compared with the others.

The rules are pure. The book is for any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fasti.cluster.server_reports import ReplicaState, ServerReport

Run = tuple[int, int]


class Damage(NamedTuple):
    """``what`` goes on after the server's name: "has lost 43 messages, the first is 17"."""

    server: str
    stream: str
    what: str

    def __str__(self) -> str:
        return f"the copy of {self.stream} on NATS server {self.server} {self.what}"


# What the servers say


def damage_in_states(
    reports: Iterable[ServerReport], before: Iterable[ServerReport], streams: Mapping[str, bool]
) -> list[Damage]:
    """Of two looks, some seconds apart. `streams`: which ones, and whether such a stream has no gaps."""
    now, then = list(reports), {report.name: report for report in before}
    found: list[Damage] = []
    for stream, is_whole in streams.items():
        copies = {each.name: each.streams[stream] for each in now if stream in each.streams}
        older = {name: then[name].streams.get(stream) for name in copies if name in then}
        end = max((state.last for state in older.values() if state and state.leads), default=0)
        for name, state in copies.items():
            what = None
            if is_whole and (lost := state.last - state.first + 1 - state.messages):
                what = f"has lost {lost} of {state.last - state.first + 1} messages"
            elif (old := older.get(name)) is not None:
                what = _stays(state, old, end) or _has_no_beginning(name, copies, older)
            if what is not None:
                found.append(Damage(name, stream, what))
    return found


def _stays(state: ReplicaState, old: ReplicaState, end: int) -> str | None:
    """A copy that is only slow comes nearer from look to look."""
    if not state.leads and state.last < end and state.last <= old.last:
        return f"stays at {state.last} while the stream has gone on to {end}"
    return None


def _has_no_beginning(
    name: str, copies: Mapping[str, ReplicaState], older: Mapping[str, ReplicaState | None]
) -> str | None:
    """One against most of the others: a single copy that is slow to trim accuses nobody."""
    state, old = copies[name], older[name]
    others = [each for other, each in copies.items() if other != name]
    fewer = sum(each.first < state.first for each in others)
    if old is not None and old.first == state.first and 2 * fewer > len(copies):
        return f"begins at {state.first}, the others before"
    return None


# What the servers have


def missing_runs(stream_runs: Sequence[Run], own: Sequence[Run]) -> list[Run]:
    """What of `stream_runs` is not in `own`. Both in order."""
    missing: list[Run] = []
    position = 0
    for first, last in stream_runs:
        while position < len(own) and own[position][1] < first:
            position += 1
        number = position
        while first <= last:
            if number == len(own) or own[number][0] > last:
                missing.append((first, last))
                break
            begin, end = own[number]
            if begin > first:
                missing.append((first, begin - 1))
            first, number = end + 1, number + 1
    return missing


def union_of(rolls: Iterable[Sequence[Run]]) -> list[Run]:
    """What at least one of them has."""
    joined: list[Run] = []
    for first, last in sorted(run for roll in rolls for run in roll):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def damage_in_rolls(
    rolls: Mapping[str, Sequence[Run]], is_whole: bool, states: Mapping[str, ReplicaState]
) -> dict[str, list[Run]]:
    """By server, what its copy lacks. What no copy has counts only where a stream has no gaps.

    `states` are what the servers said before. A copy that was behind may have what was removed since, so it
    accuses no other; and it lacks nothing that came after its own end.
    """
    end = max((state.last for state in states.values() if state.leads), default=0)
    current = {name for name in rolls if name not in states or states[name].last >= end}
    there = union_of(rolls[name] for name in current)
    if is_whole and there:
        there = [(there[0][0], there[-1][1])]
    lacks: dict[str, list[Run]] = {}
    for server, own in rolls.items():
        own_end = states[server].last if server in states else own[-1][1] if own else 0
        wanted = [(first, min(last, own_end)) for first, last in there if first <= own_end]
        if missing := missing_runs(wanted, own):
            lacks[server] = missing
    return lacks


def confirmed(first: Mapping[str, list[Run]], second: Mapping[str, list[Run]]) -> dict[str, int]:
    """How many messages each copy lacked both times: for a moment it may have lagged, or been trimmed."""
    counts: dict[str, int] = {}
    for server in first.keys() & second.keys():
        gone = missing_runs(first[server], missing_runs(first[server], second[server]))
        if gone:
            counts[server] = sum(last - begin + 1 for begin, last in gone)
    return counts


class DamageBook:
    """What is known to be damaged, and what is doubted until every copy was read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_state: dict[tuple[str, str], Damage] = {}
        self._by_roll: dict[tuple[str, str], Damage] = {}
        # What other brokers have found in streams of their own shards, with the moment until which it counts.
        self._of_others: dict[str, tuple[float, list[Damage]]] = {}
        self._doubts: dict[str, None] = {}

    def note_states(self, found: Iterable[Damage]) -> None:
        """All that the last look has shown."""
        with self._lock:
            self._by_state = {(damage.server, damage.stream): damage for damage in found}

    def note_roll(self, stream: str, lost: Mapping[str, int]) -> None:
        """All copies of a stream were read; so many messages are lost on these servers."""
        with self._lock:
            self._doubts.pop(stream, None)
            for key in [key for key in self._by_roll if key[1] == stream]:
                del self._by_roll[key]
            for server, count in lost.items():
                text = f"has lost {count} message{'' if count == 1 else 's'}"
                self._by_roll[server, stream] = Damage(server, stream, text)

    def forget(self, streams: Iterable[str]) -> None:
        """This broker doesn't look after them any more."""
        with self._lock:
            for stream in streams:
                self._doubts.pop(stream, None)
                for key in [key for key in self._by_roll if key[1] == stream]:
                    del self._by_roll[key]

    def doubt(self, stream: str) -> None:
        """A reader has met something in it that can't be right."""
        with self._lock:
            self._doubts[stream] = None

    @property
    def doubts(self) -> list[str]:
        """The streams of which every copy is to be read."""
        with self._lock:
            return list(self._doubts)

    def hear(self, broker: str, found: list[Damage], until: float) -> None:
        """What another broker has found, by its own reading."""
        with self._lock:
            self._of_others[broker] = (until, found)

    @property
    def own_findings(self) -> list[Damage]:
        """What was found by reading, for the other brokers."""
        with self._lock:
            return sorted(self._by_roll.values())

    def all_known(self, now: float) -> list[Damage]:
        """Also what others tell; one for each server and stream, in order. What is old is forgotten."""
        with self._lock:
            for broker in [name for name, told in self._of_others.items() if told[0] < now]:
                del self._of_others[broker]
            told = [damage for _, found in self._of_others.values() for damage in found]
            known = {(damage.server, damage.stream): damage for damage in told}
            return sorted({**known, **self._by_state, **self._by_roll}.values())

    @property
    def damages(self) -> list[Damage]:
        """One for each server and stream, in order."""
        with self._lock:
            return sorted({**self._by_state, **self._by_roll}.values())

    def damaged_servers(self, stream: str) -> set[str]:
        return {damage.server for damage in self.damages if damage.stream == stream}

    def is_held(self, streams: Iterable[str]) -> bool:
        """Whether nothing may be removed from these streams now; also by what the leader before has told."""
        with self._lock:
            told = (damage for _, found in self._of_others.values() for damage in found)
            held = {stream for _, stream in (*self._by_state, *self._by_roll)}
            held |= {damage.stream for damage in told}
            return any(stream in self._doubts or stream in held for stream in streams)
