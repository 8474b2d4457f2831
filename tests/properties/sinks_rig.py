"""A shard with sinks beside a naive model, fed with the same work.

The shard is a whole one, on files in memory. The model knows rows by their payloads, of which each is
another one. Published rows land, and parcels are carried out, when the next change comes or somebody
looks: until then the shard may be restarted and written to checkpoints. What the change feed tells is
folded into what is there, which must be what the shard holds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Keys, Rows
from fasti.core.replies import Step
from fasti.core.sinks import claims
from fasti.core.sinks import commands as sc
from fasti.core.sinks.commands import PARCELS
from fasti.errors import AlreadyExists, NotFound
from fasti.model import Limits, Outcome, TopicSettings
from fasti.storage import event_codec
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import Files
from fasti.storage.files.memory_files import MemoryFiles
from fasti.storage.frames import StoredFrame
from fasti.storage.local_shard import LocalShard
from fasti.storage.transitions import transitions

LIMITS = Limits(sinks_max=3, stages_max=12)
SETTINGS = ShardSettings(segment_bytes=8192, memory_bytes=16 << 20, leases_max=64, limits=LIMITS)
START_US = 1_700_000_000_000_000
TOPICS = {
    "line": TopicSettings(),
    "urgent": TopicSettings(kind="priority", partitions=3),
}
KEYS = [f"key-{n}" for n in range(8)]
# A row: its key, if any, and its payload. Of a cancel: its key.
Row = tuple[str | None, bytes]


def int64s(values: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.int64)


class Watched(LocalShard):
    """Keeps every frame that it writes, for the feed."""

    def __init__(self, files: Files, frames: list[Any]) -> None:
        self.frames = frames
        super().__init__(FileStorage(files), SETTINGS)

    def _step(self, inputs: Sequence[Any], now_us: int, tick: int) -> Step:
        step = super()._step(inputs, now_us, tick)
        self.frames += step.frames
        return step


@dataclass
class Stage:
    sink: str
    batch: int
    operation: str
    topic: str
    opened_us: int
    rows: list[Row] = field(default_factory=list)


@dataclass
class Sink:
    batch: int
    operation: str
    outcomes: Counter[str] = field(default_factory=Counter)


class Model:
    """What there should be, in the plainest way."""

    def __init__(self) -> None:
        # By topic: what is live, payload and key.
        self.live: dict[str, dict[bytes, str | None]] = {name: {} for name in TOPICS}
        self.cancelled: Counter[str] = Counter()
        self.stages: dict[str, Stage] = {}
        self.sinks: dict[str, Sink] = {}

    def by_key(self, topic: str, key: str) -> bytes | None:
        return next((p for p, k in self.live[topic].items() if k == key), None)

    def put(self, topic: str, row: Row) -> bool:
        key, payload = row
        if key is not None and self.by_key(topic, key) is not None:
            return False
        self.live[topic][payload] = key
        return True

    def cancel(self, topic: str, key: str) -> bool:
        payload = self.by_key(topic, key)
        if payload is None:
            return False
        del self.live[topic][payload]
        self.cancelled[topic] += 1
        return True

    def expire(self, now_us: int) -> None:
        for name, stage in list(self.stages.items()):
            if stage.opened_us + TOPICS[stage.topic].stage_age_us <= now_us:
                del self.stages[name]

    def conflicts(self, names: Sequence[str]) -> int:
        seen: set[tuple[str, str]] = set()
        found = 0
        for name in names:
            stage = self.stages[name]
            for key, _ in stage.rows:
                if key is None:
                    continue
                taken = self.by_key(stage.topic, key) is not None
                found += taken or (stage.topic, key) in seen
                seen.add((stage.topic, key))
        return found

    def publish(self, sink: str, batch: int, operation: str, names: Sequence[str]) -> None:
        made = self.sinks[sink] = Sink(batch, operation)
        for name in names:
            stage = self.stages[name]
            for row in stage.rows:
                if operation == "cancel":
                    assert row[0] is not None
                    done = self.cancel(stage.topic, row[0])
                    made.outcomes["ok" if done else "other"] += 1
                else:
                    made.outcomes["ok" if self.put(stage.topic, row) else "conflict"] += 1
        for name, stage in list(self.stages.items()):
            if stage.sink == sink and stage.batch <= batch:
                del self.stages[name]


class SinksRig:
    """The two, side by side."""

    def __init__(self, files: Files | None = None) -> None:
        self.files = files or MemoryFiles()
        self.frames: list[Any] = []
        self.shard = Watched(self.files, self.frames)
        self.model = Model()
        self.now_us = START_US
        for name, settings in {**TOPICS, PARCELS: TopicSettings()}.items():
            self.call(co.CreateTopic(name, settings))

    @property
    def state(self) -> Any:
        return self.shard.engine.state

    def call(self, command: Any) -> Any:
        self.now_us += 1
        return self.shard.call(command, self.now_us, 0)

    # Work

    def produce(self, topic: str, rows: Sequence[Row]) -> None:
        self.settle()
        for row in rows:
            reply = self.call(self._produce(topic, [row]))
            assert reply.error is None
            ok = self.model.put(topic, row)
            assert reply.status[0] == (Outcome.OK if ok else Outcome.CONFLICT)

    def cancel(self, topic: str, key: str) -> None:
        self.settle()
        reply = self.call(co.Cancel(topic, co.Target(keys=self._keys([key]))))
        assert (reply.status[0] == Outcome.OK) == self.model.cancel(topic, key)

    def stage(
        self, sink: str, batch: int, number: int, operation: str, topic: str, rows: Sequence[Row]
    ) -> None:
        """Rows into a stage, which is made if it isn't there; then once more, which does nothing."""
        self.settle()
        name = f"{sink}/{topic}/{batch}/{number}/0"
        known = self.model.stages.get(name)
        offset = len(known.rows) if known is not None else 0
        if known is not None and known.operation != operation:
            return
        replies = [self.call(self._staged(name, operation, topic, rows, sink, batch, offset))]
        if known is None and not self._has_room(sink):
            assert replies[0].error is not None
            return
        if known is None:
            place = (sink, batch, operation, topic, self.now_us)
            known = self.model.stages[name] = Stage(*place)
        known.rows += rows
        replies.append(self.call(self._staged(name, operation, topic, rows, sink, batch, offset)))
        assert [reply.error for reply in replies] == [None, None]
        assert [reply.sent_before for reply in replies] == [False, True]
        gap = self._staged(name, operation, topic, rows, sink, batch, len(known.rows) + 1)
        assert isinstance(self.call(gap).error, NotFound)

    def _has_room(self, sink: str) -> bool:
        known = sink in self.model.sinks or len(self.model.sinks) < LIMITS.sinks_max
        return known and len(self.model.stages) < LIMITS.stages_max

    def publish(
        self, sink: str, batch: int, operation: str, names: Sequence[str], skip: bool, claim: int
    ) -> None:
        """Publishes; if `claim` is not 0, keys are claimed beforehand, so many at a time."""
        self.settle()
        model = self.model
        last = model.sinks.get(sink)
        command = sc.PublishBatch(sink, batch, operation, list(names), skip)
        if last is not None and batch <= last.batch:
            answer = self.call(command).value
            assert answer.repeated
            assert answer.done
            assert _same(answer.outcomes, last.outcomes if batch == last.batch else Counter())
            for name in names:
                model.stages.pop(name, None)
            return
        conflicts = 0 if skip or operation == "cancel" else model.conflicts(names)
        reply = self._claimed(command, claim) if claim and not skip else self.call(command)
        if sink not in model.sinks and len(model.sinks) >= LIMITS.sinks_max:
            assert reply.error is not None
        elif conflicts:
            assert isinstance(reply.error, AlreadyExists), reply
            assert reply.error.details["conflicts"] == conflicts
            assert len(reply.error.details["locations"]) == min(conflicts, 100)
        else:
            assert reply.error is None, reply.error
            assert not reply.value.repeated
            model.publish(sink, batch, operation, names)

    def _claimed(self, command: sc.PublishBatch, rows: int) -> Any:
        keyed = [
            name
            for name in command.stages
            if self.state.stages[name].has_keys and not self.state.stages[name].is_parcels
        ]
        if not keyed:
            return self.call(command)
        claim = claims.begin(self.state, keyed)
        while claims.go_on(self.state, claim, rows):
            self.call(co.Count("line"))
        # Nobody may change the stages meanwhile.
        assert self.call(sc.DropStages(command.sink, keyed)).error is not None
        command.claim = claims.register(self.state, claim)
        reply = self.call(command)
        if reply.error is not None:
            while claims.take_back(self.state, claim, rows):
                self.call(co.Count("line"))
        return reply

    def drop(self, sink: str, names: Sequence[str]) -> None:
        self.settle()
        rows = sum(len(self.model.stages.pop(name).rows) for name in names)
        assert self.call(sc.DropStages(sink, list(names))).value == rows

    def forget(self, sink: str) -> None:
        self.settle()
        stages = [name for name, stage in self.model.stages.items() if stage.sink == sink]
        known = self.model.sinks.pop(sink, None) is not None or bool(stages)
        for name in stages:
            del self.model.stages[name]
        assert self.call(sc.ForgetSink(sink)).value is known

    def wait(self, span_us: int) -> None:
        self.now_us += span_us
        self.model.expire(self.now_us)
        self.shard.step([], self.now_us, 0)

    def checkpoint(self) -> None:
        self.now_us += 1
        self.shard.checkpoint(self.now_us, 0)

    def restart(self) -> None:
        self.shard.close()
        self.shard = Watched(self.files, self.frames)

    def step(self) -> None:
        """A bounded piece of what is to be done."""
        self.now_us += 1
        self.shard.step([], self.now_us, 0)
        self._carry()

    def settle(self) -> None:
        """All that was published takes effect."""
        while self.state.publishing or self.state.dropping:
            self.step()

    def _carry(self) -> None:
        for name, stage in self.state.publishing.items():
            if stage.is_parcels:
                batch = stage.batches[0]
                partition = self.state.topics[stage.topic].partitions[batch.partition]
                slots = partition.ledger.slots(batch.sequences[:1])
                place = partition.arena.location.take(slots)
                contents = self.shard.store.payloads.gather(place).to_pylist()[0]["payload"]
                target = co.Target(keys=self._keys(json.loads(contents)))
                topic = self.state.topics[stage.target].name
                command = sc.Carry(name, int(batch.sequences[0]), [co.Cancel(topic, target)])
                assert self.call(command).value is True
                # A second time it is not the next one.
                assert self.call(command).value is False
                return

    # Commands

    def _keys(self, keys: Sequence[str | None]) -> Keys:
        return Keys(pa.array(keys, pa.string()), self.shard.store.seed)

    def _produce(self, topic: str, rows: Sequence[Row]) -> co.Produce:
        keys = [key for key, _ in rows]
        given = {"key": keys} if any(keys) else {}
        batch = Rows.of([payload for _, payload in rows], **given)
        command = co.Produce(topic, batch, co.When(delay_us=10**15))
        command.keys = self._keys(keys) if given else None
        return command

    def _staged(
        self,
        name: str,
        operation: str,
        topic: str,
        rows: Sequence[Row],
        sink: str,
        batch: int,
        offset: int,
    ) -> co.Produce:
        if operation == "cancel":
            keys = [key for key, _ in rows]
            parcels = [keys[begin : begin + 2] for begin in range(0, len(keys), 2)]
            counts = int64s([len(each) for each in parcels])
            payloads = Rows.of([json.dumps(each).encode() for each in parcels])
            command = co.Produce(PARCELS, payloads, co.When(due_us=counts))
        else:
            command = self._produce(topic, rows)
        command.stage = name
        command.staging = co.Staging(sink, batch, operation, topic, offset)
        return command

    # Looking

    def check(self) -> None:
        """Everything that can be seen is what the model says."""
        self.settle()
        for topic in TOPICS:
            self._check_topic(topic)
        staged = Counter(stage.topic for stage in self.model.stages.values())
        assert len(self.state.stages) == staged.total()
        views = {view.sink: view for view in self.call(sc.DescribeSinks()).value}
        known = {*self.model.sinks, *(s.sink for s in self.model.stages.values())}
        assert set(views) == known
        for name, sink in self.model.sinks.items():
            view = views[name]
            assert (view.batch, view.operation, view.done) == (sink.batch, sink.operation, True)
            assert _same(view.outcomes, sink.outcomes)
        for name, view in views.items():
            mine = [s for s in self.model.stages.values() if s.sink == name]
            assert (view.stages, view.rows) == (len(mine), sum(len(s.rows) for s in mine))
        self._check_feed()

    def _check_topic(self, topic: str) -> None:
        live = self.model.live[topic]
        counts = self.call(co.Count(topic)).states
        staged = [
            row
            for stage in self.model.stages.values()
            if stage.topic == topic and stage.operation == "produce"
            for row in stage.rows
        ]
        assert counts["scheduled"] == len(live)
        assert counts["staged"] == len(staged)
        assert counts["cancelled"] == self.model.cancelled[topic]
        assert self._listed(topic) == live
        named = self.call(co.Get(topic, co.Target(keys=self._keys(KEYS))))
        for row, key in enumerate(KEYS):
            payload = self.model.by_key(topic, key)
            assert (named.status[row] == Outcome.OK) == (payload is not None), key
            if payload is not None:
                place = named.columns["location"][row : row + 1]
                assert self.shard.store.payloads.gather(place).to_pylist()[0]["payload"] == payload

    def _listed(self, topic: str) -> dict[bytes, str | None]:
        found: dict[bytes, str | None] = {}
        after_id = 0
        while True:
            page = self.call(co.List(topic, after_id, limit=1000, state="scheduled"))
            if len(page.ids):
                locations = page.columns["location"]
                rows = self.shard.store.payloads.gather(locations).to_pylist()
                found.update((row["payload"], row["key"]) for row in rows)
            after_id = page.next_after_id
            if not after_id:
                return found

    def _check_feed(self) -> None:
        """The feed, folded message by message."""
        names = self.state.directory.topics
        frames = [
            StoredFrame(
                frame.sequence,
                frame.events[-1].at_us,
                1,
                True,
                True,
                memoryview(b"".join(bytes(memoryview(b).cast("B")) for b in _encoded(frame))),
            )
            for frame in self.frames
            if frame.events
        ]
        shown = transitions(frames, _Names(names), self.shard.store.seed, payloads=True)
        states: dict[tuple[str, int], str] = {}
        payloads: dict[tuple[str, int], bytes] = {}
        after = {"produced": "live", "staged": "staged", "published": "live", "cancelled": "gone"}
        after["stage_dropped"] = "gone"
        allowed = {("none", "produced"), ("none", "staged"), ("staged", "published")}
        allowed |= {("staged", "stage_dropped"), ("live", "cancelled")}
        for row in shown.to_pylist():
            if row["op"] not in after:
                continue
            place = row["topic"], row["id"]
            assert (states.get(place, "none"), row["op"]) in allowed
            states[place] = after[row["op"]]
            if row["payload"] is not None:
                payloads[place] = row["payload"]
        for topic, live in self.model.live.items():
            told = {payloads[p] for p, s in states.items() if s == "live" and p[0] == topic}
            assert told == set(live)


def _encoded(frame: Any) -> list[Any]:
    return event_codec.encode(frame)


class _Names:
    def __init__(self, topics: dict[int, str]) -> None:
        self._topics = topics

    def topic(self, number: int) -> str:
        return self._topics[number]

    def group(self, topic: int, number: int, frame: int) -> str:
        raise AssertionError("no logs here")


def _same(found: dict[str, int], wanted: Counter[str]) -> bool:
    """How many came out ok, and how many did not."""
    rest = sum(found.values()) - found.get("ok", 0)
    return (found.get("ok", 0), rest) == (wanted["ok"], wanted.total() - wanted["ok"])
