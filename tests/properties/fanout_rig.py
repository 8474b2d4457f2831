"""A shard with bound topics beside the naive model of fan-out, fed with the same work."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest

from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.core.replies import Deliver, Reply
from fasti.core.routing import fanout
from fasti.core.routing.commands import Bind, ReadBindings, Unbind
from fasti.core.routing.matching import Matcher
from fasti.errors import NotFound, Overloaded
from fasti.model import SECOND_US, OnConflict, Outcome, State, TopicSettings
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import Files
from fasti.storage.local_shard import LocalShard
from tests.models.fanout import Fanout, Holder, Row

SETTINGS = ShardSettings(segment_bytes=8192, memory_bytes=64 << 20, leases_max=4096)
START_US = 1_700_000_000 * SECOND_US
TOPICS = {
    "orders": TopicSettings(),
    "relay": TopicSettings(relay=True),
    "emails": TopicSettings(),
    "audit": TopicSettings(partitions=3),
    "events": TopicSettings(kind="log", partitions=2),
    "urgent": TopicSettings(kind="priority", partitions=2),
}
SOURCES = ("orders", "relay", "emails", "events", "urgent")
TARGETS = ("emails", "audit", "events", "orders", "urgent")
# Into these one may send with a priority: it counts wherever the topic has them.
RANKED = ("relay", "urgent")
PATTERNS = ("orders.*.created", "orders.>", ">", "orders.eu.created", "*.eu.>", "*", "a.b")
SUBJECTS = (
    None,
    "orders.eu.created",
    "orders.us.created",
    "orders",
    "a.b",
    "x.eu.y.z",
    "orders.eu",
)
KEYS = (None, None, *(f"key-{n}" for n in range(5)))
# Id, payload, key, version, state, priority.
Listed = tuple[int, bytes, str | None, int, str, int]
POLICIES = {"reject": OnConflict.REJECT, "replace": OnConflict.REPLACE, "keep": OnConflict.KEEP}


class Rig:
    """Both, side by side. Every call compares what they answer; `compare` what they hold."""

    def __init__(self, files: Files, rng: random.Random) -> None:
        self.files, self.rng = files, rng
        self.model = Fanout()
        self.now_us = START_US
        self.shard = LocalShard(FileStorage(files), SETTINGS)
        self.payloads = 0
        self.sequences = {"p-1": 0, "p-2": 0}
        # The last batch of each producer, and what it was answered.
        self.sent: dict[str, tuple[dict[str, Any], list[int]]] = {}
        # Of each topic, bindings as they once were: for batches that come too late.
        self.old: dict[str, Matcher] = {}
        for name, settings in TOPICS.items():
            self.create(name, settings)

    def step(self, command: Any) -> Any:
        self.now_us += 1_000
        return self.shard.step([command], self.now_us, self.now_us)

    def call(self, command: Any) -> Any:
        reply = self.step(command).replies[0]
        if reply.error is not None:
            raise reply.error
        return reply

    # Topics

    def create(self, name: str, settings: TopicSettings) -> None:
        self.call(co.CreateTopic(name, settings))
        self.model.topics[name] = Holder(settings.kind, settings.relay)

    def remake(self, name: str) -> None:
        self.call(co.DeleteTopic(name))
        self.model.delete(name)
        self.create(name, TOPICS[name])

    def bind(self, topic: str, pattern: str, target: str) -> None:
        if topic == target:
            return
        self.old[topic] = self.matcher(topic)
        bindings = self.model.topics[topic].bindings
        new = (pattern, target) not in bindings
        assert self.call(Bind(topic, pattern, target)).value == new
        if new:
            bindings.append((pattern, target))

    def unbind(self, topic: str, pattern: str, target: str) -> None:
        self.old[topic] = self.matcher(topic)
        bindings = self.model.topics[topic].bindings
        try:
            self.call(Unbind(topic, pattern, target))
            bindings.remove((pattern, target))
        except NotFound:
            assert (pattern, target) not in bindings

    def matcher(self, topic: str) -> Matcher:
        version, bindings = self.call(ReadBindings(topic)).value
        assert bindings == self.model.topics[topic].bindings
        return Matcher(version, bindings)

    # Producing

    def rows(self, count: int, topic: str = "") -> list[Row]:
        made = []
        for _ in range(count):
            self.payloads += 1
            payload = b"%d" % self.payloads
            priority = self.rng.randint(0, 3) if topic in RANKED else 0
            made.append(Row(payload, self.rng.choice(KEYS), self.rng.choice(SUBJECTS), priority))
        return made

    def command(self, topic: str, rows: list[Row], matcher: Matcher, **more: Any) -> co.Produce:
        columns: dict[str, Any] = {}
        for name in ("key", "subject"):
            values = [getattr(row, name) for row in rows]
            if any(value is not None for value in values):
                columns[name] = values
        made = Rows.of([row.payload for row in rows], **columns)
        subjects = made.batch.column("subject") if "subject" in columns else None
        more["on_conflict"] = POLICIES[more.pop("on_conflict", "reject")]
        if topic in RANKED:
            more["priorities"] = np.array([row.priority for row in rows], dtype=np.uint16)
        routes = matcher.routes(subjects, len(rows))
        keys = made.keys(self.shard.store.seed)
        return co.Produce(topic, made, keys=keys, routes=routes, **more)

    def produce(self, topic: str, policy: str, owner: str, atomic: bool) -> None:
        rows = self.rows(self.rng.randint(1, 6), topic)
        put = self.model.produce_whole if atomic else self.model.produce
        given = {"on_conflict": policy, "owner": owner, "atomic": atomic}
        command = self.command(topic, rows, self.matcher(topic), **given)
        reply = self.call(command)
        assert words(reply) == put(topic, rows, owner, policy)
        self._check_ids(topic, rows, reply)

    def _check_ids(self, topic: str, rows: list[Row], reply: Reply) -> None:
        """A row that is ok is the message that its id names; in a relay there is none."""
        for row, status, found in zip(rows, words(reply), reply.ids.tolist(), strict=True):
            if status == "ok" and TOPICS[topic].relay:
                assert found == 0
            elif status == "ok" and TOPICS[topic].kind != "log":
                seen = {m[0]: m[1] for m in self.listed(topic)}
                # A later row of the batch may have replaced it.
                assert found in seen
                if row.key is None:
                    assert seen[found] == row.payload

    def produce_late(self, topic: str) -> None:
        """A batch under bindings that have changed since: routed by those of now, or refused."""
        matcher = self.old.get(topic)
        if matcher is None or matcher.version == self.matcher(topic).version:
            return
        rows = self.rows(2, topic)
        command = self.command(topic, rows, matcher)
        if len(rows) <= fanout.ROUTED_HERE_MAX or not self.model.topics[topic].bindings:
            assert words(self.call(command)) == self.model.produce(topic, rows, "", "reject")
            return
        with pytest.raises(Overloaded) as refusal:
            self.call(command)
        assert refusal.value.details["bindings_of"] == topic

    def produce_numbered(self, topic: str, producer: str) -> None:
        rows = self.rows(self.rng.randint(1, 4), topic)
        self.sequences[producer] += 1
        number = {"producer": producer, "producer_sequence": self.sequences[producer]}
        reply = self.call(self.command(topic, rows, self.matcher(topic), **number))
        assert words(reply) == self.model.produce(topic, rows, "", "reject")
        self.sent[producer] = ({"topic": topic, "rows": rows, **number}, reply.ids.tolist())

    def produce_again(self, producer: str) -> None:
        """The same batch once more, whatever has become of the bindings: answered as it was."""
        if producer in self.sent and self.sent[producer][0]["topic"] in self.model.topics:
            given, ids = self.sent[producer]
            given = dict(given)
            topic, rows = given.pop("topic"), given.pop("rows")
            matcher = self.old.get(topic) or self.matcher(topic)
            reply = self.call(self.command(topic, rows, matcher, **given))
            assert reply.sent_before
            assert reply.ids.tolist() == ids

    def transact(self, topic: str, other: str) -> None:
        """Two batches, of which the second may undo the first."""
        before = self.model.topics
        batches = [(topic, self.rows(2)), (other, self.rows(2))]
        commands = [self.command(name, rows, self.matcher(name)) for name, rows in batches]
        reply = self.call(co.Transaction(commands))
        self.model.topics = copy.deepcopy(before)
        said = []
        for name, rows in batches:
            said.append(self.model.produce_whole(name, rows, "", "reject"))
            if said[-1] != ["ok"] * len(rows):
                break
        assert reply.committed == all(each == ["ok"] * 2 for each in said)
        if not reply.committed:
            self.model.topics = before
            said = [["aborted" if w == "ok" else w for w in each] for each in said]
        assert [words(each) for each in reply.replies] == said

    # What frees and holds keys

    def cancel(self, topic: str, key: str) -> None:
        taken = self.model.topics[topic].find(key)
        target = co.Target(keys=Rows.of([b""], key=[key]).keys(self.shard.store.seed))
        reply = self.call(co.Cancel(topic, target, owner=taken.owner if taken else ""))
        if taken is not None and taken.state == "scheduled":
            assert words(reply) == ["ok"]
            taken.state = "cancelled"

    def lease(self, topic: str) -> None:
        step = self.step(co.Lease(topic, 1, "worker", 1, wait=False))
        for sent in (each for each in step.effects if isinstance(each, Deliver)):
            found = self.shard.store.payloads.gather(sent.location).column("payload").to_pylist()
            for message in self.model.topics[topic].messages:
                if message.payload in found and message.state == "scheduled":
                    message.state = "leased"

    # The whole

    def reopen(self, files: Files) -> None:
        """Another disk, as a crash left it: only to be looked at."""
        self.files, self.now_us = files, START_US + 3_600 * SECOND_US
        self.shard = LocalShard(FileStorage(files), SETTINGS, tick=self.now_us)

    def restart(self) -> None:
        self.shard.close()
        self.shard = LocalShard(FileStorage(self.files), SETTINGS, tick=self.now_us)
        for topic in self.model.topics.values():
            topic.unrouted = 0

    def checkpoint(self) -> None:
        self.now_us += 1_000
        self.shard.checkpoint(self.now_us, self.now_us)

    def listed(self, topic: str) -> list[Listed]:
        """Every message, by id."""
        if TOPICS[topic].kind == "log":
            return self._logged(topic)
        rows: list[Listed] = []
        after = 0
        while True:
            found = self.call(co.List(topic, after_id=after, limit=100_000))
            if len(found.ids):
                contents = self.shard.store.payloads.gather(found.columns["location"])
                is_leased = found.columns["state"] == State.LEASED
                rows += zip(
                    found.ids.tolist(),
                    contents.column("payload").to_pylist(),
                    contents.column("key").to_pylist(),
                    found.columns["version"].tolist(),
                    np.where(is_leased, "leased", "scheduled").tolist(),
                    found.columns.get("priority", np.zeros(len(found.ids), int)).tolist(),
                    strict=True,
                )
            if not (after := found.next_after_id):
                return rows

    def _logged(self, topic: str) -> list[Listed]:
        rows: list[Listed] = []
        for partition in self.shard.engine.state.by_name[topic].body.partitions:
            span = np.arange(partition.earliest, partition.next_offset)
            if len(span):
                found = self.shard.store.payloads.gather(partition.locations_of(span))
                payloads, keys = (
                    found.column("payload").to_pylist(),
                    found.column("key").to_pylist(),
                )
                values = zip(payloads, keys, strict=True)
                rows += [(0, payload, key, 1, "scheduled", 0) for payload, key in values]
        return rows

    def compare(self) -> None:
        for name, holder in self.model.topics.items():
            seen = [message[1:] for message in self.listed(name)]
            kept = [m for m in holder.messages if m.state in ("scheduled", "leased")]
            meant = [(m.payload, m.key, m.version, m.state, m.priority) for m in kept]
            if TOPICS[name].partitions > 1:
                seen, meant = sorted(seen, key=repr), sorted(meant, key=repr)
            assert seen == meant, name
            assert self.shard.engine.state.by_name[name].unrouted == holder.unrouted
            self.matcher(name)


def words(reply: Reply) -> list[str]:
    return [Outcome(code).word for code in reply.status.tolist()]
