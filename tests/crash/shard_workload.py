"""Random work on a shard, and everything that can be seen of a shard as plain values.

An operation is symbolic (`("move", {...})`), so that it can be given to shards whose keys are
hashed under different secrets. Ids are the same on every shard that has seen the same operations
before; leases are named by who took them. `Workload.grow` invents the next operation by looking at
what a shard holds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Keys, Rows
from fasti.core.replies import Deliver, Step
from fasti.model import (
    MINUTE_US,
    SECOND_US,
    SEQUENCE_BITS,
    OnConflict,
    Outcome,
    State,
    TopicSettings,
    partition_of,
    sequence_of,
)
from fasti.storage.files import Files
from fasti.storage.local_shard import LocalShard
from tests.crash.photographs import START_US, Op, PhasedShard, Sight

SETTINGS = ShardSettings(segment_bytes=8192, memory_bytes=16 << 20, leases_max=4096, feed_bytes=0)
LONG_US = 24 * 60 * MINUTE_US
KEYS = [f"key-{n}" for n in range(12)]
TOPICS = {
    "one": TopicSettings(max_attempts=2),
    "three": TopicSettings(partitions=3, max_attempts=3),
    "urgent": TopicSettings(kind="priority", max_attempts=2),
    "aging": TopicSettings(kind="priority", age_step_us=20 * SECOND_US),
}

Seed = tuple[int, int]


def int64s(values: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.int64)


def keys_of(values: Sequence[str | None], seed: Seed) -> Keys:
    return Keys(pa.array(values, pa.string()), seed)


def to_command(op: Op, seed: Seed) -> Any:
    """The engine's command for an operation."""
    name, given = op
    given = dict(given)
    if name == "transaction":
        return co.Transaction([to_command(part, seed) for part in given["parts"]])
    if name in ("produce", "update"):
        columns = given.pop("columns")
        keys = columns.get("key")
        rows = Rows.of(**columns)
        if name == "update":
            return co.Update(given["topic"], co.Target(ids=int64s(given["ids"])), rows)
        due_us = int64s(given.pop("due_us"))
        if "priorities" in given:
            given["priorities"] = np.array(given["priorities"], dtype=np.uint16)
        if "expires_us" in given:
            given["expires"] = co.Expires(int64s(given.pop("expires_us")))
        command = co.Produce(rows=rows, when=co.When(due_us=due_us), **given)
        command.keys = None if keys is None else keys_of(keys, seed)
        return command
    if name == "reprioritise":
        priorities = np.array(given["priorities"], dtype=np.uint16)
        return co.Reprioritise(given["topic"], co.Target(ids=int64s(given["ids"])), priorities)
    if name in ("move", "cancel"):
        if "keys" in given:
            target = co.Target(keys=keys_of(given["keys"], seed))
        else:
            target = co.Target(ids=int64s(given["ids"]))
        if name == "cancel":
            return co.Cancel(given["topic"], target)
        return co.Move(given["topic"], target, co.When(due_us=int64s(given["due_us"])))
    if name == "redrive":
        keys = keys_of(given["keys"], seed)
        when = co.When(due_us=int64s(given["due_us"]))
        return co.Redrive(given["topic"], int64s(given["ids"]), keys, when)
    if name in ("ack", "nack", "release", "reject", "purge", "extend"):
        kinds = {"ack": co.Ack, "nack": co.Nack, "release": co.Release, "reject": co.Reject}
        kinds |= {"purge": co.Purge, "extend": co.Extend}
        for column in ("ids", "tokens"):
            if column in given:
                given[column] = int64s(given[column])
        if "due_us" in given:
            given["when"] = co.When(due_us=int64s(given.pop("due_us")))
        return kinds[name](**given)
    plain = {
        "create_topic": co.CreateTopic,
        "delete_topic": co.DeleteTopic,
        "lease": co.Lease,
        "publish": co.Publish,
        "drop_stage": co.DropStage,
        "heartbeat": co.Heartbeat,
    }
    return plain[name](**given)


class Driven(PhasedShard):
    """A local shard that takes operations, at a time that each of them brings along."""

    def __init__(self, files: Files, settings: ShardSettings = SETTINGS) -> None:
        super().__init__(files, settings)

    def do(self, op: Op, now_us: int) -> Step | None:
        """Carries an operation out; when it returns, it is acknowledged."""
        if op[0] == "phase":
            self.phase(now_us)
            return None
        if op[0] == "checkpoint":
            while self.in_phase:
                self.phase(now_us)
            self.shard.checkpoint(now_us, 0)
            return None
        if op[0] == "restart":
            self.restart()
            return None
        if op[0] == "expire":
            # Far beyond every lease, armed anew by a restart or not.
            return self.shard.step([], now_us, LONG_US)
        self.shard.step([], now_us, 0)  # Who doesn't wait gets only what is read back already.
        command = to_command(self._with_tokens(op), self.shard.store.seed)
        return self.shard.step([command], now_us, 0)

    def _with_tokens(self, op: Op) -> Op:
        """Fencing tokens for leases that are named by who took them; 0 for those that are over."""
        name, given = op
        if name == "transaction":
            return name, {"parts": [self._with_tokens(part) for part in given["parts"]]}
        if "takers" not in given:
            return op
        given = dict(given)
        known = self.shard.engine.state.by_name.get(given["topic"])
        topic = known.number if known is not None else 0
        leases = dump_leases(self.shard)
        tokens = []
        for message, taker in zip(given["ids"], given.pop("takers"), strict=True):
            token, consumer, _ = leases.get(
                (topic, partition_of(message), sequence_of(message)), (0, "", 0)
            )
            tokens.append(token if consumer == taker else 0)
        return name, given | {"tokens": tokens}


# What can be seen


def without_tokens(seen: dict[str, Any]) -> dict[str, Any]:
    """A dump without what may differ after a restart: how hand-outs are grouped under tokens."""
    leases = {place: held[1:] for place, held in seen["leases"].items()}
    return seen | {"leases": leases, "next_token": 0}


def dump(shard: LocalShard, now_us: int) -> dict[str, Any]:
    """Everything durable that a shard can be asked for, as plain values."""
    engine = shard.engine
    shard.step([], now_us, 0)
    seen: dict[str, Any] = {
        "topics": {},
        "next_token": engine.memory.leases.next_token,
        "next_topic": engine.state.next_topic,
    }
    for topic in list(engine.state.topics.values()):
        seen["topics"][topic.name] = _dump_topic(shard, topic, now_us)
    seen["leases"] = dump_leases(shard)
    seen["producers"] = {
        name: (
            producer.last_sequence,
            producer.known_until_us,
            [(r.sequence, *(column.tolist() for column in r.answers())) for r in producer.receipts],
        )
        for name, producer in engine.state.producers.all().items()
    }
    seen["stages"] = {name: _dump_stage(shard, s) for name, s in engine.state.stages.items()}
    return seen


def payloads(shard: LocalShard, locations: Any) -> list[dict[str, Any]]:
    return shard.store.payloads.gather(np.asarray(locations, dtype=np.int64)).to_pylist()


def _dump_topic(shard: LocalShard, topic: Any, now_us: int) -> dict[str, Any]:
    ids = [
        sequence | partition.number << SEQUENCE_BITS
        for partition in topic.partitions
        for sequence in range(1, partition.ledger.next_sequence)
    ]
    messages: dict[int, Any] = {}
    ended: dict[int, str] = {}
    if ids:
        found = shard.call(co.Get(topic.name, co.Target(ids=int64s(ids))), now_us, 0)
        live = np.flatnonzero(found.status == Outcome.OK)
        contents = payloads(shard, found.columns["location"][live])
        for row, content in zip(live.tolist(), contents, strict=True):
            messages[ids[row]] = _message(found, row) | content
        for row in np.flatnonzero(found.status != Outcome.OK).tolist():
            ended[ids[row]] = Outcome(int(found.status[row])).word
    by_key = shard.call(
        co.Get(topic.name, co.Target(keys=keys_of(KEYS, shard.store.seed))), now_us, 0
    )
    return {
        "settings": topic.settings.to_dict(),
        "paused": topic.paused,
        "messages": messages,
        "listed": list_all(shard, topic.name, now_us),
        "ended": ended,
        # Only the living have their key for certain: for how long the others do is no promise.
        "keys": {
            key: int(by_key.ids[row])
            for row, key in enumerate(KEYS)
            if not by_key.status[row] and by_key.columns["state"][row] != State.DEAD
        },
        "counts": shard.call(co.Count(topic.name), now_us, 0).states,
        "forecast": _forecast(shard, topic.name, now_us),
    }


def _message(found: Any, row: int) -> dict[str, Any]:
    columns = {name: int(values[row]) for name, values in found.columns.items()}
    # A restart arms leases anew.
    del columns["location"], columns["lease_until_us"]
    return columns | {name: names[columns[name]] for name, names in found.names.items()}


def list_all(shard: LocalShard, topic: str, now_us: int) -> list[Any]:
    """Every message of a topic, by pages."""
    listed: list[Any] = []
    after = 0
    while True:
        page = shard.call(co.List(topic, after, limit=7), now_us, 0)
        listed += [(int(page.ids[row]), _message(page, row)) for row in range(len(page.ids))]
        after = page.next_after_id
        if not after:
            return listed


def _forecast(shard: LocalShard, topic: str, now_us: int) -> list[tuple[int, int]]:
    begin = START_US - START_US % MINUTE_US - 100 * MINUTE_US
    command = co.Forecast(topic, begin, begin + 10_000 * MINUTE_US, MINUTE_US)
    buckets = shard.call(command, now_us, 0)
    return list(zip(buckets.start_us.tolist(), buckets.count.tolist(), strict=True))


def dump_leases(shard: LocalShard) -> dict[tuple[int, int, int], tuple[int, str, int]]:
    table = shard.engine.memory.leases
    names = shard.engine.memory.consumers
    columns = {name: values.tolist() for name, values in table.columns().items()}
    places = zip(columns["topic"], columns["partition"], columns["sequence"], strict=True)
    held = zip(
        columns["token"], map(names.name, columns["consumer"]), columns["length"], strict=True
    )
    return dict(zip(places, held, strict=True))


def _dump_stage(shard: LocalShard, stage: Any) -> dict[str, Any]:
    rows = []
    for batch in stage.batches:
        partition = shard.engine.state.topics[stage.topic].partitions[batch.partition]
        slots = partition.ledger.slots(batch.sequences)
        contents = payloads(shard, partition.arena.location[slots])
        due = partition.arena.due[slots].tolist()
        states = partition.states(slots).tolist()
        rows += list(zip(batch.sequences.tolist(), due, states, contents, strict=True))
    return {
        "topic": stage.topic,
        "opened_at_us": stage.opened_at_us,
        "published": stage.published,
        "rows": rows,
    }


def drain(shard: LocalShard, now_us: int) -> dict[str, list[tuple[int, int, bytes]]]:
    """Leases everything there is, as if it were a year later: what would be delivered, in order."""
    later_us = now_us + 365 * 24 * 60 * MINUTE_US
    delivered: dict[str, list[tuple[int, int, bytes]]] = {}
    shard.step([], later_us, 0)  # What runs hold is read back, and then there to be leased.
    for topic in list(shard.engine.state.by_name):
        command = co.Lease(topic, 1, "drain", 100_000, wait=False)
        step = shard.step([command], later_us, 0)
        got: list[tuple[int, int, bytes]] = []
        for effect in step.effects:
            if isinstance(effect, Deliver):
                contents = payloads(shard, effect.location)
                ids, due = effect.ids.tolist(), effect.due_us.tolist()
                got += [(d, i, c["payload"]) for d, i, c in zip(due, ids, contents, strict=True)]
        delivered[topic] = got
    return delivered


def check_drained(seen: dict[str, Any], delivered: dict[str, list[tuple[int, int, bytes]]]) -> None:
    """What was delivered is what was scheduled, once each, every partition in its order.

    But for what expires: all of that is over by then.
    """
    for topic, got in delivered.items():
        messages = seen["topics"][topic]["messages"]
        pending = [
            (m["due_us"], i, m["payload"])
            for i, m in messages.items()
            if m["state"] in (1, 7) and not m["expires_us"]
        ]
        assert sorted(got) == sorted(pending), topic
        for partition in {partition_of(i) for _, i, _ in got}:
            mine = [messages[i] for _, i, _ in got if partition_of(i) == partition]
            ranks = [_rank(seen["topics"][topic]["settings"], message) for message in mine]
            assert ranks == sorted(ranks), topic


def _rank(settings: dict[str, Any], message: dict[str, Any]) -> tuple[int, ...]:
    if settings["kind"] != "priority":
        return (message["due_us"],)
    if settings["age_step_us"]:
        return (message["due_us"] + message["priority"] * settings["age_step_us"],)
    return message["priority"], message["due_us"]


# Inventing work


class Workload:
    """A list of operations that grows beside a shard, which it looks at to find sensible ones."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._serial = 0
        self._sent: dict[str, int] = {}
        self._leased: list[tuple[str, int, str]] = []
        self.ops: list[Op] = [
            ("create_topic", {"name": n, "settings": s}) for n, s in TOPICS.items()
        ]

    def grow(self, driven: Driven, now_us: int) -> Op:
        """The next operation."""
        kinds = {
            "produce": 8, "produce_keyed": 8, "idempotent": 3, "update": 3, "move": 4, "cancel": 4,
            "reprioritise": 3,
            "lease": 7, "ack": 5, "nack": 4, "release": 2, "reject": 2, "redrive": 3, "purge": 1,
            "stage": 3, "publish": 3, "drop_stage": 1, "transaction": 4, "expire": 1,
            "checkpoint": 6, "restart": 2, "scrap": 1, "extend": 1,
            "phase": 9, "delete_topic": 0.5,
        }  # fmt: skip
        for name, settings in TOPICS.items():
            if name not in driven.shard.engine.state.by_name:
                self.ops.append(("create_topic", {"name": name, "settings": settings}))
                return self.ops[-1]
        while True:
            kind = self._rng.choices(list(kinds), list(kinds.values()))[0]
            op: Op | None = getattr(self, f"_{kind}")(driven, now_us)
            if op is not None:
                self.ops.append(op)
                return op

    def note(self, step: Step | None) -> None:
        """What an operation brought: leases to use later."""
        for effect in [] if step is None else step.effects:
            if isinstance(effect, Deliver):
                taker = f"c{effect.session}"
                self._leased += [(effect.topic, i, taker) for i in effect.ids.tolist()]

    def _topic(self) -> str:
        return self._rng.choice(list(TOPICS))

    def _due(self, now_us: int) -> int:
        away = self._rng.choice([-5, 0, 1, 30, 300, 5_000, 500_000])
        return now_us + away * SECOND_US + self._rng.randrange(SECOND_US)

    def _columns(self, count: int, keyed: bool) -> dict[str, Any]:
        rng = self._rng
        columns: dict[str, Any] = {"payloads": []}
        for _ in range(count):
            self._serial += 1
            size = rng.choice([0, 3, 40, 700])
            columns["payloads"].append(b"%d:" % self._serial + b"p" * size)
        if keyed:
            given: list[str | None] = list(rng.sample(KEYS, min(count, len(KEYS))))
            given += [None] * (count - len(given))
            columns["key"] = [key if rng.random() < 0.8 else None for key in given]
        if rng.random() < 0.4:
            columns["headers"] = [[("n", str(n))] if n % 2 else None for n in range(count)]
        if rng.random() < 0.3:
            columns["content_type"] = ["text/plain"] * count
        return columns

    def _produce(self, driven: Driven, now_us: int, keyed: bool = False, **more: Any) -> Op:
        count = self._rng.choice([1, 2, 5, 9])
        given = {"topic": self._topic(), "columns": self._columns(count, keyed)}
        given["due_us"] = [self._due(now_us) for _ in range(count)]
        given["owner"] = ""
        if self._rng.random() < 0.2:
            # Soon, so that some are over in time; 0 never is.
            ends = [now_us + self._rng.randrange(1, 20 * MINUTE_US) for _ in range(count)]
            given["expires_us"] = [end * self._rng.randrange(2) for end in ends]
        if TOPICS[given["topic"]].kind == "priority" and self._rng.random() < 0.9:
            given["priorities"] = [self._priority() for _ in range(count)]
        if keyed:
            given["on_conflict"] = self._rng.choice(list(OnConflict))
        elif given["topic"] == "three":
            given["partition"] = self._rng.randrange(3)
        # Without a key column and a partition it would go by turns, which no restart remembers.
        if keyed and given["topic"] == "three":
            columns = given["columns"]
            columns["key"] = [
                key or f"other-{self._serial}-{n}" for n, key in enumerate(columns["key"])
            ]
        return "produce", given | more

    def _produce_keyed(self, driven: Driven, now_us: int) -> Op:
        return self._produce(driven, now_us, keyed=True)

    def _idempotent(self, driven: Driven, now_us: int) -> Op:
        name = self._rng.choice(["p", "q"])
        self._sent[name] = self._sent.get(name, 0) + (self._rng.random() < 0.8)
        number = max(1, self._sent[name])
        self._sent[name] = number
        return self._produce(driven, now_us, producer=name, producer_sequence=number)

    def _stage(self, driven: Driven, now_us: int) -> Op:
        name = self._rng.choice(["s", "t"])
        stage = driven.shard.engine.state.stages.get(name)
        op = self._produce(driven, now_us, keyed=self._rng.random() < 0.5, stage=name)
        if stage is not None:
            topic = driven.shard.engine.state.topics[stage.topic].name
            if op[1]["topic"] != topic:
                return self._stage(driven, now_us)
        op[1].pop("on_conflict", None)
        return op

    def _publish(self, driven: Driven, now_us: int) -> Op | None:
        stages = list(driven.shard.engine.state.stages)
        if not stages:
            return None
        return "publish", {"stage": self._rng.choice(stages), "skip_conflicts": True}

    def _drop_stage(self, driven: Driven, now_us: int) -> Op | None:
        stages = list(driven.shard.engine.state.stages)
        return ("drop_stage", {"stage": self._rng.choice(stages)}) if stages else None

    def _some(self, driven: Driven, now_us: int, states: tuple[int, ...]) -> tuple[str, Any]:
        topic = self._topic()
        listed = list_all(driven.shard, topic, now_us)
        fitting = [(i, m) for i, m in listed if m["state"] in states]
        return topic, self._rng.sample(fitting, min(len(fitting), self._rng.choice([1, 2, 4])))

    def _update(self, driven: Driven, now_us: int) -> Op | None:
        topic, chosen = self._some(driven, now_us, (1, 7))
        if not chosen:
            return None
        ids = [i for i, _ in chosen]
        columns = self._columns(len(ids), keyed=False)
        # As whoever sends an update must: the key and the time of creation go along.
        found = driven.shard.call(co.Get(topic, co.Target(ids=int64s(ids))), now_us, 0)
        before = payloads(driven.shard, found.columns["location"])
        columns["key"] = [content["key"] for content in before]
        columns["created_us"] = [content["created_us"] for content in before]
        return "update", {"topic": topic, "ids": ids, "columns": columns}

    def _priority(self) -> int:
        return self._rng.choice([0, 1, 2, 5, 300, 65_535])

    def _reprioritise(self, driven: Driven, now_us: int) -> Op | None:
        topic, chosen = self._some(driven, now_us, (1, 7, 2))
        if not chosen or TOPICS[topic].kind != "priority":
            return None
        priorities = [self._priority() for _ in chosen]
        ids = [i for i, _ in chosen]
        return "reprioritise", {"topic": topic, "ids": ids, "priorities": priorities}

    def _move(self, driven: Driven, now_us: int) -> Op | None:
        if self._rng.random() < 0.3:
            keys = self._rng.sample(KEYS, 3)
            due_us = [self._due(now_us) for _ in keys]
            return "move", {"topic": self._topic(), "keys": keys, "due_us": due_us}
        topic, chosen = self._some(driven, now_us, (1, 7, 2))
        if not chosen:
            return None
        due_us = [self._due(now_us) for _ in chosen]
        return "move", {"topic": topic, "ids": [i for i, _ in chosen], "due_us": due_us}

    def _cancel(self, driven: Driven, now_us: int) -> Op | None:
        if self._rng.random() < 0.3:
            return "cancel", {"topic": self._topic(), "keys": self._rng.sample(KEYS, 2)}
        topic, chosen = self._some(driven, now_us, (1, 7, 2, 3))
        return ("cancel", {"topic": topic, "ids": [i for i, _ in chosen]}) if chosen else None

    def _scrap(self, driven: Driven, now_us: int) -> Op | None:
        """Cancels nearly everything of a topic, so that blocks die."""
        topic = self._topic()
        ids = [i for i, m in list_all(driven.shard, topic, now_us) if m["state"] in (1, 7)]
        return ("cancel", {"topic": topic, "ids": ids[:-1]}) if len(ids) > 1 else None

    def _lease(self, driven: Driven, now_us: int) -> Op:
        # A new consumer each time: which session had a name before is nothing durable.
        self._serial += 1
        given = {"session": self._serial, "consumer": f"c{self._serial}", "wait": False}
        return "lease", {"topic": self._topic(), "count": self._rng.choice([1, 3, 8]), **given}

    def _held(self) -> dict[str, Any] | None:
        if not self._leased:
            return None
        topic = self._rng.choice(self._leased)[0]
        mine = [entry for entry in self._leased if entry[0] == topic]
        chosen = self._rng.sample(mine, min(len(mine), self._rng.choice([1, 2, 3])))
        if self._rng.random() < 0.9:
            self._leased = [entry for entry in self._leased if entry not in chosen]
        return {"topic": topic, "ids": [i for _, i, _ in chosen], "takers": [t for *_, t in chosen]}

    def _ack(self, driven: Driven, now_us: int) -> Op | None:
        held = self._held()
        return ("ack", held) if held else None

    def _extend(self, driven: Driven, now_us: int) -> Op | None:
        held = self._held()
        return ("extend", held | {"length_us": 77 * SECOND_US}) if held else None

    def _nack(self, driven: Driven, now_us: int) -> Op | None:
        held = self._held()
        return ("nack", held | {"reason": f"why-{self._rng.randrange(3)}"}) if held else None

    def _reject(self, driven: Driven, now_us: int) -> Op | None:
        held = self._held()
        return ("reject", held | {"reason": f"no-{self._rng.randrange(3)}"}) if held else None

    def _release(self, driven: Driven, now_us: int) -> Op | None:
        held = self._held()
        if held is None:
            return None
        return "release", held | {"due_us": [self._due(now_us) for _ in held["ids"]]}

    def _redrive(self, driven: Driven, now_us: int) -> Op | None:
        topic, chosen = self._some(driven, now_us, (3,))
        if not chosen:
            return None
        ids = [i for i, _ in chosen]
        found = driven.shard.call(co.Get(topic, co.Target(ids=int64s(ids))), now_us, 0)
        keys = [content["key"] for content in payloads(driven.shard, found.columns["location"])]
        due_us = [self._due(now_us) for _ in ids]
        return "redrive", {"topic": topic, "ids": ids, "keys": keys, "due_us": due_us}

    def _purge(self, driven: Driven, now_us: int) -> Op | None:
        topic, chosen = self._some(driven, now_us, (3,))
        return ("purge", {"topic": topic, "ids": [i for i, _ in chosen]}) if chosen else None

    def _transaction(self, driven: Driven, now_us: int) -> Op:
        parts = [self._produce(driven, now_us, keyed=self._rng.random() < 0.5)]
        for maker in self._rng.sample(
            [self._ack, self._move, self._cancel, self._update, self._reprioritise], 2
        ):
            part = maker(driven, now_us)
            if part is not None:
                parts.append(part)
        self._rng.shuffle(parts)
        return "transaction", {"parts": parts}

    def _expire(self, driven: Driven, now_us: int) -> Op:
        return "expire", {}

    def _checkpoint(self, driven: Driven, now_us: int) -> Op:
        return "checkpoint", {}

    def _phase(self, driven: Driven, now_us: int) -> Op:
        return "phase", {}

    def _delete_topic(self, driven: Driven, now_us: int) -> Op:
        return "delete_topic", {"name": self._topic()}

    def _restart(self, driven: Driven, now_us: int) -> Op:
        return "restart", {}


def moment(step: int) -> int:
    """The time of a step of a workload."""
    return START_US + step * 2 * SECOND_US


def write_story(seed: int, steps: int, files: Files) -> tuple[list[Op], list[Sight]]:
    """Operations, and what a shard that never crashed shows around each of them."""
    workload = Workload(seed)
    driven = Driven(files)
    sights: list[Sight] = []
    for step in range(steps):
        now_us = moment(step)
        if step >= len(workload.ops):
            workload.grow(driven, now_us)
        before = dump(driven.shard, now_us)
        workload.note(driven.do(workload.ops[step], now_us))
        sights.append((before, dump(driven.shard, now_us)))
    driven.shard.close()
    return workload.ops[:steps], sights
