"""A shard with topics of every kind that has messages, and all of its durable state as plain values.

`seen` shows what a checkpoint would keep and what readers would get, payloads and not places: so it
is the same before and after a transaction that came to nothing, a restart, and a checkpoint.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fasti.broker.kv.requests import KvKeys
from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.agenda import FOREVER
from fasti.core.capsule import capture
from fasti.core.keys import Keys, Rows
from fasti.core.kv.commands import KvDelete, KvGet, KvPut
from fasti.core.log.commands import DescribeLog, ReadLog
from fasti.core.replies import Deliver
from fasti.core.rows.arena import STATE_MASK
from fasti.core.timeline.reads import READY
from fasti.model import SECOND_US, OnConflict, RetryPolicy, State, TopicSettings
from fasti.storage.file_storage import FileStorage
from fasti.storage.files.memory_files import MemoryFiles
from fasti.storage.local_shard import LocalShard
from fasti.storage.log_rows import read_piece

START_US = 1_700_000_000 * SECOND_US
SHARD = ShardSettings(segment_bytes=1 << 15, memory_bytes=16 << 20, leases_max=256)
RETRY = RetryPolicy(base_us=SECOND_US, jitter=0)
TOPICS = {
    "mail": TopicSettings(partitions=2, max_attempts=2, retry=RETRY),
    "jobs": TopicSettings(kind="priority", max_attempts=2, retry=RETRY),
    "events": TopicSettings(kind="log", partitions=3, max_attempts=2, retry=RETRY),
    "state": TopicSettings(kind="kv", partitions=2),
}
GROUP = "g"
KEYS = [f"key-{number}" for number in range(8)]
# One name each, or their numbers would depend on what was tried and came to nothing.
OWNER, REASON = "ann", "why"
Held = tuple[str, int, int]


def int64s(values: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.int64)


class MixedShard:
    """The shard, who has leases on it, and what may be asked of it next."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.files = MemoryFiles()
        self.shard = LocalShard(FileStorage(self.files), SHARD)
        self.now_us = START_US
        self.sent = 0
        self.held: list[Held] = []
        for name, settings in TOPICS.items():
            assert self.call(co.CreateTopic(name, settings)).error is None

    def call(self, command: Any) -> Any:
        return self.shard.call(command, self.now_us, 0)

    def restart(self) -> None:
        self.shard.close()
        self.shard = LocalShard(FileStorage(self.files), SHARD)

    def take(self) -> None:
        """Leases some of what is there."""
        topic = self.rng.choice(["mail", "jobs", "events"])
        group = GROUP if topic == "events" else ""
        command = co.Lease(topic, 1, "worker", self.rng.randint(1, 4), wait=False, group=group)
        step = self.shard.step([command], self.now_us, 0)
        assert step.replies[0].error is None, step.replies[0].error
        for effect in step.effects:
            if isinstance(effect, Deliver):
                self.held += [(effect.topic, int(each), effect.token) for each in effect.ids]

    # Parts of transactions

    def part(self) -> Any:
        """Something that may be part of a transaction, and may well fail."""
        made: Any = None
        while made is None:
            kinds = (self._produce, self._produce, self._change, self._return, self._return)
            made = self.rng.choice((*kinds, self._put, self._delete))()
        return made

    def _keys(self, count: int) -> list[str]:
        return self.rng.sample(KEYS, count)

    def _payloads(self, count: int) -> list[bytes]:
        self.sent += count
        return [b"%d" % number for number in range(self.sent - count, self.sent)]

    def _produce(self) -> co.Produce:
        topic = self.rng.choice(["mail", "jobs", "events"])
        count = self.rng.randint(1, 3)
        keys = self._keys(count) if self.rng.random() < 0.6 else None
        rows = Rows.of(self._payloads(count), key=keys)
        hashed = None if keys is None else Keys(pa.array(keys), self.shard.store.seed)
        command = co.Produce(topic, rows, keys=hashed)
        if topic == "events":
            command.partition = self.rng.choice([None, 0, 1, 2])
            return command
        command.owner = self.rng.choice(["", OWNER])
        command.when = co.When(delay_us=self.rng.choice([0, 0, 60 * SECOND_US]))
        command.on_conflict = self.rng.choice([OnConflict.KEEP, OnConflict.REPLACE])
        if topic == "jobs":
            command.priorities = np.array([self.rng.randint(0, 9)] * count, dtype=np.uint16)
        return command

    def _change(self) -> Any:
        topic = self.rng.choice(["mail", "jobs"])
        keys = self._keys(1)
        pending = self._pending(topic)
        if pending and self.rng.random() < 0.9:
            keys = [self.rng.choice(pending)]
        target = co.Target(keys=Keys(pa.array(keys), self.shard.store.seed))
        choice = self.rng.random()
        if choice < 0.4:
            when = co.When(delay_us=self.rng.choice([0, 30 * SECOND_US]))
            return co.Move(topic, target, when, owner=OWNER)
        if choice < 0.6:
            return co.Cancel(topic, target, owner=OWNER)
        rows = Rows.of(self._payloads(1), key=keys, created_us=[START_US])
        return co.Update(topic, target, rows, owner=OWNER)

    def _pending(self, topic: str) -> list[str]:
        """Keys of messages that may be changed."""
        target = co.Target(keys=Keys(pa.array(KEYS), self.shard.store.seed))
        found = self.call(co.Get(topic, target))
        words = (State.SCHEDULED, READY)
        good = (found.status == 0) & np.isin(found.columns["state"], words)
        return [key for key, fits in zip(KEYS, good.tolist(), strict=True) if fits]

    def used(self, parts: list[Any]) -> None:
        """A transaction stood: leases that it used are over."""
        gone = {
            (part.topic, int(each))
            for part in parts
            if isinstance(part, (co.Ack, co.Nack, co.Release, co.Reject))
            for each in part.ids
        }
        self.held = [held for held in self.held if held[:2] not in gone]

    def _return(self) -> Any:
        """Uses leases, of which some may be over."""
        if not self.held:
            return None
        topic = self.rng.choice(self.held)[0]
        mine = [held for held in self.held if held[0] == topic]
        mine = self.rng.sample(mine, self.rng.randint(1, min(3, len(mine))))
        ids, tokens = int64s([held[1] for held in mine]), int64s([held[2] for held in mine])
        group = GROUP if topic == "events" else ""
        if self.rng.random() < 0.2:
            return co.Extend(topic, ids, tokens, 20 * SECOND_US, group=group)
        verb = self.rng.choice([co.Ack, co.Ack, co.Release, co.Nack, co.Reject])
        if verb in (co.Ack, co.Release):
            return verb(topic, ids, tokens, group=group)
        return verb(topic, ids, tokens, REASON, group=group)

    def _kv_keys(self, keys: list[str]) -> KvKeys:
        column = pa.array(keys, pa.string())
        return KvKeys(column, column, self.shard.store.seed)

    def _put(self) -> KvPut:
        keys = self._keys(self.rng.randint(1, 3))
        rows = Rows.of(self._payloads(len(keys)), key=keys)
        versions = int64s([self.rng.choice([-1, -1, -1, 0, 1])] * len(keys))
        return KvPut("state", rows, self._kv_keys(keys), versions)

    def _delete(self) -> KvDelete:
        keys = self._keys(1)
        return KvDelete("state", Rows.of([b""], key=keys), self._kv_keys(keys))

    def failing(self) -> Any:
        """Something that fails, by a row or as a whole."""
        if self.rng.random() < 0.5:
            return co.Ack("mail", int64s([1 << 40]), int64s([3]))
        return co.Produce("events", Rows.of([b"x"]), partition=99)

    # What can be seen

    def seen(self) -> dict[str, Any]:
        state = self.shard.engine.state
        capsule = capture(state)
        columns = {
            name: (made() if callable(made) else made).tolist()
            for name, made in capsule.columns.items()
        }
        leases = {name: columns.pop(name) for name in list(columns) if name.startswith("lease.")}
        for name in [name for name in columns if name.startswith("marks.")]:
            del columns[name]
        for prefix in [name.removesuffix("again") for name in columns if name.endswith(".again")]:
            columns[prefix + "waiting"] = _waiting(prefix, columns)
        head = {
            name: capsule.head[name] for name in ("next_topic", "next_token", "topics", "producers")
        }
        names = capsule.head["consumers"]
        leases["lease.consumer"] = [names[number] for number in leases["lease.consumer"]]
        return {
            "head": head,
            "columns": columns,
            "leases": sorted(zip(*(leases[name] for name in sorted(leases)), strict=True)),
            "rows": self._rows(),
            "log": {number: self._log(number) for number in range(TOPICS["events"].partitions)},
            "keys": self._found(),
            "counts": {name: self.call(co.Count(name)).states for name in TOPICS},
        }

    def _rows(self) -> dict[str, Any]:
        """Messages and entries of the arena, with what lies at their places."""
        engine = self.shard.engine
        snapshot = engine.snapshots.pin(self.now_us, FOREVER)
        found: dict[str, Any] = {}
        try:
            for topic, partition in snapshot.ledgers:
                for columns in snapshot.rows(topic, partition):
                    self._add_rows(found, (topic, partition), columns)
        finally:
            engine.snapshots.release(snapshot.number)
        return found

    def _add_rows(self, found: dict[str, Any], place: Any, columns: dict[str, Any]) -> None:
        contents = self.shard.store.payloads.gather(columns["location"]).to_pylist()
        states = columns["flags"] & STATE_MASK
        reasons = np.where(states == State.DEAD, columns["lease"], 0)
        shown = ("sequence", "due", "version", "owner", "attempts", "priority")
        values = [columns[name].tolist() for name in shown if name in columns]
        for row in zip(*values, states.tolist(), reasons.tolist(), contents, strict=True):
            found[f"{place}-{row[0]}"] = row[1:]

    def _log(self, number: int) -> list[Any]:
        said = self.call(DescribeLog("events")).value[number]
        rows: list[Any] = []
        reached = said["earliest"]
        while reached < said["end"]:
            for piece in self.call(ReadLog("events", number, reached)).pieces:
                rows += read_piece(self.shard.store.payloads, piece).to_pylist()
                reached += piece.count
        return rows

    def _found(self) -> dict[str, Any]:
        seed = self.shard.store.seed
        found: dict[str, Any] = {}
        for topic in ("mail", "jobs"):
            target = co.Target(keys=Keys(pa.array(KEYS), seed))
            reply = self.call(co.Get(topic, target))
            states = reply.columns["state"]
            live = (reply.status == 0) & (states != State.DEAD)
            found[topic] = np.where(live, reply.ids, 0).tolist()
        entries = self.call(KvGet("state", self._kv_keys(KEYS)))
        versions = np.where(entries.status == 0, entries.versions, 0)
        found["state"] = list(zip(entries.status.tolist(), versions.tolist(), strict=True))
        return found


def _waiting(prefix: str, columns: dict[str, Any]) -> list[Any]:
    """Rows of groups that wait for their time: a hint that stands twice is one."""
    offsets, due = columns.pop(prefix + "again"), columns.pop(prefix + "due")
    rows = columns.pop(prefix + "again.rows")
    columns.pop(prefix + "due.rows")
    places = [place for place, count in enumerate(rows) for _ in range(count)]
    return sorted(set(zip(places, offsets, due, strict=True)))
