"""The engine beside the naive model, under everything that can be asked of it.

`EngineMachine` draws commands, time, restarts, checkpoints and late slices in any order. The rig
compares every answer and the whole state after every step; at the end of each run time leaps far
ahead and everything that was ever accepted is drained, so that a lost message is found.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fasti.core import commands as co
from fasti.core.calendar import histogram, slices
from fasti.core.calendar import wheel as calendar
from fasti.core.columns import index
from fasti.core.delivery import expiry, turns
from fasti.core.priority import kind as priority
from fasti.core.rows import memory
from fasti.core.timeline import partition, staging
from fasti.model import (
    DAY_US,
    HOUR_US,
    MINUTE_US,
    SECOND_US,
    OnConflict,
    RetryPolicy,
    State,
    TopicSettings,
    make_id,
)
from tests.models.timeline import Model
from tests.properties.engine_rig import Op, Rig

LANDED_PER_STEP = 3
TOPICS = ("one", "three")
KEYS = ("a", "b", "c", "d", "e", "f", "g")
OWNERS = ("", "", "ann", "bob")
CONSUMERS = ("w1", "w2")
STAGES = ("s1", "s2")
PRODUCERS = ("p1", "p2")

# Long enough to cross slices of every level of the calendar, and to be read back from runs.
SPANS_US = st.sampled_from(
    [0, 1, 5_000, 16_384, 60_000]
    + [n * SECOND_US for n in (1, 3, 60, 180, 600, 3_600)]
    + [n * DAY_US for n in (1, 400)]
)


# Few, so that due times decide too; far apart, so that they don't with a guard.
PRIORITIES = st.sampled_from([0, 0, 1, 2, 3, 100, 65_535])
KINDS = [("timeline", 0)] * 2 + [("priority", 0)] * 2 + [("priority", n) for n in (1, MINUTE_US)]


@st.composite
def topic_settings(
    draw: Any, partitions: int, kind: tuple[str, int] = ("timeline", 0)
) -> TopicSettings:
    return TopicSettings(
        kind=kind[0],
        age_step_us=kind[1],
        partitions=partitions,
        lease_us=draw(st.sampled_from([SECOND_US, 30 * SECOND_US])),
        hold_us=draw(st.sampled_from([30 * SECOND_US, HOUR_US])),
        max_attempts=draw(st.sampled_from([0, 1, 2])),
        retry=RetryPolicy(draw(st.sampled_from([0, SECOND_US])), 2.0, MINUTE_US, 0.1),
        lookahead_us=draw(st.sampled_from([0, 50_000, MINUTE_US])),
        outcome_age_us=draw(st.sampled_from([0, MINUTE_US, DAY_US])),
        producer_age_us=draw(st.sampled_from([MINUTE_US, 7 * DAY_US])),
        stage_age_us=draw(st.sampled_from([MINUTE_US, DAY_US])),
    )


class EngineMachine(RuleBasedStateMachine):
    """Everything that can be asked of the engine."""

    def __init__(self) -> None:
        super().__init__()
        self.rig: Rig
        self._payloads = 0
        self._sequences: dict[str, int] = {}
        self._sessions = 0

    @initialize(data=st.data(), leases_max=st.sampled_from([3, 1000]))
    def start(self, data: st.DataObject, leases_max: int) -> None:
        self.rig = Rig(LANDED_PER_STEP, leases_max)
        for name, partitions in zip(TOPICS, (1, 3), strict=True):
            self._create(data, name, partitions)

    def _create(self, data: st.DataObject, name: str, partitions: int) -> None:
        kind = data.draw(st.sampled_from(KINDS))
        given = {"name": name, "settings": data.draw(topic_settings(partitions, kind))}
        self.rig.step([("create_topic", given)])

    # What commands are drawn from

    def _payload(self) -> bytes:
        self._payloads += 1
        return b"%d" % self._payloads

    def _topic(self, draw: Any) -> str:
        return draw(st.sampled_from(TOPICS))

    def _when(self, draw: Any, count: int) -> Any:
        kind = draw(st.sampled_from(["none", "delay", "delay", "due"]))
        if kind == "none":
            return None
        each = draw(st.booleans())
        spans = [draw(SPANS_US) for _ in range(count if each else 1)]
        if kind == "due":
            sign = draw(st.sampled_from([1, 1, -1]))
            spans = [max(0, self.rig.now_us + sign * span) for span in spans]
            if draw(st.integers(0, 9)) == 0:
                spans[0] = 0
        return kind, spans if each else spans[0]

    def _ids(self, draw: Any, topic: str, count: int, state: State | None = None) -> list[int]:
        """Ids to name: mostly of messages in a useful state, some finished, some made up."""
        known = self.rig.model.topics[topic].messages if topic in self.rig.model.topics else {}
        good = [i for i, m in known.items() if state is None or m.state == state]
        every = self.rig.ids_used.get(topic, [])
        ids = []
        for _ in range(count):
            choice = draw(st.integers(0, 9))
            if good and choice < 7:
                ids.append(draw(st.sampled_from(good)))
            elif every and choice < 9:
                ids.append(draw(st.sampled_from(every)))
            else:
                made_up = [0, -1, 999, make_id(1, 1), make_id(7, 1), make_id(0, 1 << 50)]
                ids.append(draw(st.sampled_from(made_up)))
        return ids

    def _tokens(self, draw: Any, topic: str, ids: list[int]) -> list[int]:
        tokens = []
        for message_id in ids:
            message = self.rig.model.topics[topic].messages.get(message_id)
            if message is not None and message.token > 0 and draw(st.integers(0, 7)):
                tokens.append(message.token)
            else:
                old = self.rig.tokens_used.get(message_id, [])
                tokens.append(draw(st.sampled_from([0, 1, 999, *old])))
        return tokens

    def _produce(self, draw: Any, **fixed: Any) -> Op:
        topic = self._topic(draw)
        count = draw(st.integers(1, 5))
        given: dict[str, Any] = {
            "topic": topic,
            "payloads": [self._payload() for _ in range(count)],
            "when": self._when(draw, count),
            "owner": draw(st.sampled_from(OWNERS)),
            "on_conflict": draw(st.sampled_from(list(OnConflict))),
        }
        if draw(st.booleans()):
            given["keys"] = [draw(st.sampled_from([None, *KEYS])) for _ in range(count)]
        elif draw(st.integers(0, 3)) == 0:
            given["explicit_partition"] = draw(st.integers(0, 0 if topic == "one" else 2))
        given["priorities"] = self._priorities(draw, topic, count)
        given["expires"] = self._expires(draw, count)
        return "produce", {**given, **fixed}

    def _expires(self, draw: Any, count: int) -> Any:
        kind = draw(st.sampled_from([None, None, None, "at", "after"]))
        if kind is None:
            return None
        spans = [draw(SPANS_US) * draw(st.integers(0, 1)) for _ in range(count)]
        if kind == "after":
            return kind, spans
        sign = draw(st.sampled_from([1, 1, -1]))
        return kind, [span and max(1, self.rig.now_us + sign * span) for span in spans]

    def _priorities(self, draw: Any, topic: str, count: int) -> list[int] | None:
        """For a topic that has them, mostly; for another one hardly ever."""
        known = self.rig.model.topics.get(topic)
        chance = 9 if known is not None and known.settings.kind == "priority" else 1
        if draw(st.integers(0, 19)) >= 2 * chance:
            return None
        return [draw(PRIORITIES) for _ in range(count)]

    def _numbered(self, draw: Any) -> dict[str, Any]:
        """An idempotent producer: mostly the next number, else one sent before, or a gap."""
        name = draw(st.sampled_from(PRODUCERS))
        known = self.rig.model.producers.get(name)
        following = known.last_sequence + 1 if known else 1
        step = draw(st.sampled_from([0, 0, 0, 0, -1, -2, -9, 1]))
        return {"producer": name, "producer_sequence": max(0, following + step)}

    def _sure(self, draw: Any) -> Op:
        """A command that should succeed, for transactions that should happen."""
        topic = self._topic(draw)
        states = {
            m.id: m for m in self.rig.model.topics[topic].messages.values() if m.state != State.DEAD
        }
        if not states or draw(st.booleans()):
            name, given = self._produce(draw)
            return name, {**given, "keys": None}
        message = states[draw(st.sampled_from(sorted(states)))]
        given: dict[str, Any] = {"topic": topic, "ids": [message.id]}
        if message.state == State.LEASED:
            verb = draw(st.sampled_from(["ack", "nack", "reject", "release"]))
            return verb, {**given, "tokens": [message.token]}
        given["owner"] = message.owner
        name = draw(st.sampled_from(["update", "move", "cancel"]))
        if name == "update" and self.rig.model.topics[topic].settings.kind == "priority":
            return "reprioritise", {**given, "priorities": [draw(PRIORITIES)]}
        if name == "update":
            given["payloads"] = [self._payload()]
        if name == "move":
            given["when"] = self._when(draw, 1)
            given["expires"] = self._expires(draw, 1)
        return name, given

    def _change(self, draw: Any) -> Op:
        topic = self._topic(draw)
        known = self.rig.model.topics.get(topic)
        names = ["update", "move", "cancel"]
        if known is not None and known.settings.kind == "priority":
            names += ["reprioritise"] * 3
        name = draw(st.sampled_from(names))
        count = draw(st.integers(1, 4))
        given: dict[str, Any] = {"topic": topic, "owner": draw(st.sampled_from(OWNERS))}
        if draw(st.booleans()):
            given["ids"] = self._ids(draw, topic, count, State.SCHEDULED)
        else:
            given["keys"] = [draw(st.sampled_from([*KEYS, "never"])) for _ in range(count)]
        given["versions"] = draw(
            st.one_of(st.just(0), st.lists(st.integers(0, 3), min_size=count, max_size=count))
        )
        if name == "update":
            given["payloads"] = [self._payload() for _ in range(count)]
            given["priorities"] = self._priorities(draw, topic, count)
        if name == "reprioritise":
            given["priorities"] = [draw(PRIORITIES) for _ in range(count)]
        if name == "move":
            given["when"] = self._when(draw, count)
        return name, given

    def _use_lease(self, draw: Any) -> Op:
        name = draw(st.sampled_from(["ack", "ack", "release", "nack", "reject", "extend"]))
        topic = self._topic(draw)
        ids = self._ids(draw, topic, draw(st.integers(1, 4)), State.LEASED)
        given: dict[str, Any] = {
            "topic": topic,
            "ids": ids,
            "tokens": self._tokens(draw, topic, ids),
        }
        if name in ("nack", "reject"):
            given["reason"] = draw(st.sampled_from(["", "why", "because"]))
        if name == "release":
            given["when"] = self._when(draw, len(ids))
        if name == "extend":
            given["length_us"] = draw(st.sampled_from([SECOND_US, MINUTE_US, 2 * HOUR_US]))
        return name, given

    def _dead(self, draw: Any) -> Op:
        topic = self._topic(draw)
        ids = self._ids(draw, topic, draw(st.integers(1, 4)), State.DEAD)
        if draw(st.booleans()):
            return "purge", {"topic": topic, "ids": ids}
        messages = self.rig.model.topics[topic].messages
        keys = [messages[i].key if i in messages else None for i in ids]
        return "redrive", {
            "topic": topic,
            "ids": ids,
            "keys": keys if any(keys) else None,
            "when": self._when(draw, len(ids)),
        }

    def _stage(self, draw: Any) -> Op:
        name = draw(st.sampled_from(STAGES))
        kind = draw(st.sampled_from(["produce", "produce", "publish", "publish", "drop_stage"]))
        if kind == "produce" or (name not in self.rig.model.stages and draw(st.integers(0, 4))):
            return self._produce(draw, stage=name)
        if kind == "publish":
            return "publish", {"stage": name, "skip_conflicts": draw(st.booleans())}
        return kind, {"stage": name}

    def _read(self, draw: Any) -> Op:
        topic = self._topic(draw)
        if draw(st.booleans()):
            return "get", {"topic": topic, "ids": self._ids(draw, topic, 4)}
        return "get", {"topic": topic, "keys": [draw(st.sampled_from(KEYS)) for _ in range(3)]}

    def _wait(self, draw: Any) -> Op:
        """A consumer asks for messages: under its session, or under a new one."""
        topic, consumer = self._topic(draw), draw(st.sampled_from(CONSUMERS))
        sessions = self.rig.model.topics[topic].sessions
        session = sessions.get(consumer, 0)
        chance = draw(st.integers(0, 9))
        if chance == 9 and sessions:
            session = draw(st.sampled_from(sorted(sessions.values())))
        elif not session or chance < 2:
            self._sessions += 1
            session = self._sessions
        count = draw(st.sampled_from([0, 1, 2, 20]))
        given = {"topic": topic, "session": session, "consumer": consumer, "count": count}
        return "lease", given

    def _leased(self) -> bool:
        return any(
            m.state == State.LEASED
            for topic in self.rig.model.topics.values()
            for m in topic.messages.values()
        )

    # Rules

    @rule(data=st.data())
    def produce(self, data: st.DataObject) -> None:
        self.rig.step([self._produce(data.draw)])

    @rule(data=st.data(), atomic=st.booleans())
    def produce_idempotently(self, data: st.DataObject, atomic: bool) -> None:
        self.rig.step([self._produce(data.draw, atomic=atomic, **self._numbered(data.draw))])

    @rule(data=st.data())
    def produce_atomically(self, data: st.DataObject) -> None:
        self.rig.step([self._produce(data.draw, atomic=True)])

    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        self.rig.step([self._change(data.draw)])

    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        self.rig.step([self._wait(data.draw)])

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        self.rig.settle()
        name, given = self._wait(data.draw)
        self.rig.step([(name, {**given, "wait": False})])

    @precondition(lambda self: self._leased())
    @rule(data=st.data())
    def use_lease(self, data: st.DataObject) -> None:
        self.rig.step([self._use_lease(data.draw)])

    @rule(data=st.data(), paused=st.booleans())
    def pause(self, data: st.DataObject, paused: bool) -> None:
        self.rig.step([("pause_topic", {"name": self._topic(data.draw), "paused": paused})])

    @precondition(lambda self: self._leased())
    @rule(data=st.data(), by_id=st.booleans())
    def take_back(self, data: st.DataObject, by_id: bool) -> None:
        topic = self._topic(data.draw)
        known = self.rig.ids_used.get(topic)
        if by_id and known:
            ids = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=4))
            self.rig.step([("release_leases", {"topic": topic, "ids": ids})])
        else:
            consumer = data.draw(st.sampled_from(CONSUMERS))
            self.rig.step([("release_leases", {"topic": topic, "consumer": consumer})])

    @precondition(lambda self: self._leased())
    @rule(data=st.data(), kind=st.sampled_from(["heartbeat", "detach", "again"]))
    def keep_lease(self, data: st.DataObject, kind: str) -> None:
        if kind == "detach":
            self.rig.step([("detach", {"session": data.draw(st.integers(0, self._sessions))})])
        elif kind == "again":
            self.rig.step([self._use_lease(data.draw), self._use_lease(data.draw)])
        else:
            consumer = data.draw(st.sampled_from(CONSUMERS))
            given = {"topic": self._topic(data.draw), "consumer": consumer}
            self.rig.step([("heartbeat", given)])

    @precondition(lambda self: any(topic.sessions for topic in self.rig.model.topics.values()))
    @rule(data=st.data(), silent=st.booleans(), more=st.booleans())
    def listen(self, data: st.DataObject, silent: bool, more: bool) -> None:
        """Nothing comes from a consumer any more, or something comes again."""
        topic = self._topic(data.draw)
        sessions = self.rig.model.topics[topic].sessions
        consumer = data.draw(st.sampled_from(CONSUMERS))
        session = data.draw(st.sampled_from(sorted({0, *sessions.values()})))
        given = {"topic": topic, "session": sessions.get(consumer, session), "consumer": consumer}
        if not silent:
            self.rig.step([("heard", {**given, "finished": more})])
            return
        known = self.rig.model.topics[topic].messages.values()
        after = data.draw(st.sampled_from([0, *(m.token for m in known)]))
        self.rig.step([("unheard", {**given, "after_token": after, "hold_back": more})])

    @precondition(
        lambda self: any(
            m.state == State.DEAD
            for topic in self.rig.model.topics.values()
            for m in topic.messages.values()
        )
    )
    @rule(data=st.data())
    def dead(self, data: st.DataObject) -> None:
        self.rig.step([self._dead(data.draw)])

    @rule(data=st.data())
    def stage(self, data: st.DataObject) -> None:
        self.rig.step([self._stage(data.draw)])

    @rule(data=st.data(), kind=st.sampled_from(["get", "list", "count", "keys"]))
    def look(self, data: st.DataObject, kind: str) -> None:
        if kind == "get":
            self.rig.step([self._read(data.draw)])
        elif kind == "count":
            self.rig.check_reads()
        elif kind == "keys":
            self.rig.check_keys()
        else:
            self.rig.settle()
            number = data.draw(st.sampled_from([*reversed(self.rig.snapshots), 0]))
            if number:
                self.rig.check_snapshot(number)
            else:
                self._list(data, data.draw(st.sampled_from([1, 2, 100])))

    def _list(self, data: st.DataObject, limit: int) -> None:
        filters: dict[str, Any] = {}
        if data.draw(st.booleans()):
            words = ["scheduled", "ready", "leased", "dead"]
            filters["state"] = data.draw(st.sampled_from(words))
        if data.draw(st.booleans()):
            filters["owner"] = data.draw(st.sampled_from(["", "ann", "nobody"]))
        if data.draw(st.booleans()):
            filters["due_from_us"] = self.rig.now_us
            filters["due_to_us"] = self.rig.now_us + data.draw(SPANS_US)
        self.rig.list_all(self._topic(data.draw), limit, filters)

    @rule(data=st.data(), more=st.integers(2, 4))
    def several_in_one_step(self, data: st.DataObject, more: int) -> None:
        kinds = [self._produce, self._change, self._stage, self._wait, self._read, self._dead]
        kinds += [self._use_lease] * 2
        ops = [data.draw(st.sampled_from(kinds))(data.draw) for _ in range(more)]
        self.rig.step(ops)

    @rule(data=st.data(), parts=st.integers(1, 4))
    def transaction(self, data: st.DataObject, parts: int) -> None:
        kinds = [self._sure] * 4 + [self._produce, self._change, self._use_lease]
        commands = [data.draw(st.sampled_from(kinds))(data.draw) for _ in range(parts)]
        self.rig.step([("transaction", {"commands": commands})])

    @precondition(lambda self: self._leased())
    @rule(data=st.data())
    def transaction_that_hands_on(self, data: st.DataObject) -> None:
        """Consume, transform, produce: under the same key, or to fail at the very end."""
        topic = self._topic(data.draw)
        leased = [
            m for m in self.rig.model.topics[topic].messages.values() if m.state == State.LEASED
        ]
        if not leased:
            return
        message = data.draw(st.sampled_from(leased))
        verb = data.draw(st.sampled_from(["ack", "nack", "reject", "release", "extend"]))
        use: dict[str, Any] = {"topic": topic, "ids": [message.id], "tokens": [message.token]}
        if verb == "extend":
            use["length_us"] = MINUTE_US
        again = {"topic": topic, "payloads": [self._payload()], "keys": [message.key]}
        commands: list[Op] = [(verb, use), ("produce", again)]
        if data.draw(st.booleans()):
            bad = {"topic": topic, "ids": [12345]}
            commands.append(("cancel", bad))
        self.rig.step([("transaction", {"commands": commands})])

    @rule(data=st.data(), really=st.integers(0, 5))
    def change_topic(self, data: st.DataObject, really: int) -> None:
        name = self._topic(data.draw)
        if really == 0:
            self._delete(data, name)
            return
        known = self.rig.model.topics[name].settings
        kind = (known.kind, known.age_step_us)
        if data.draw(st.integers(0, 9)) == 0:
            kind = data.draw(st.sampled_from(KINDS))
        given = {"name": name, "settings": data.draw(topic_settings(known.partitions, kind))}
        self.rig.step([("change_topic", given)])

    def _delete(self, data: st.DataObject, name: str) -> None:
        self.rig.step([("delete_topic", {"name": name})])
        self.rig.ids_used.pop(name, None)
        for number in list(self.rig.snapshots):
            self.rig.engine.snapshots.release(number)
            del self.rig.snapshots[number]
        self._create(data, name, 1 if name == "one" else 3)

    @rule(span=SPANS_US)
    def time_passes(self, span: int) -> None:
        self.rig.now_us += span
        self.rig.tick += span
        self.rig.step()

    @rule(span=SPANS_US, wall=st.booleans())
    def clocks_drift(self, span: int, wall: bool) -> None:
        self.rig.now_us += span if wall else 0
        self.rig.tick += 0 if wall else span
        self.rig.step()

    @rule()
    def wake_up_in_time(self) -> None:
        """Goes on to exactly the moment that the last step asked for."""
        self.rig.settle()
        wish = self.rig.last
        if wish.wake_at_us is not None and wish.wake_at_us < self.rig.now_us + DAY_US:
            self.rig.now_us = max(self.rig.now_us, wish.wake_at_us)
        elif wish.wake_at_tick is not None:
            self.rig.tick = max(self.rig.tick, wish.wake_at_tick)
        self.rig.step()

    @rule()
    def restart(self) -> None:
        self.rig.restart()

    @rule(data=st.data(), span=st.sampled_from([0, 1, MINUTE_US, 1000 * DAY_US]))
    def take_or_drop_snapshot(self, data: st.DataObject, span: int) -> None:
        if not span and self.rig.snapshots:
            number = data.draw(st.sampled_from(sorted(self.rig.snapshots)))
            self.rig.step(inputs=[co.DropSnapshot(number)])
            del self.rig.snapshots[number]
            return
        deadline_us = self.rig.now_us + max(span, 1)
        step = self.rig.engine.step([co.TakeSnapshot(deadline_us)], self.rig.now_us, self.rig.tick)
        seen: list[Model] = []
        self.rig.apply_read(step, seen)
        snapshot = step.replies[0].value
        self.rig.snapshots[snapshot.number] = (seen[0], snapshot)

    # Storage

    @precondition(lambda self: self.rig.runs.open is None)
    @rule(whole=st.booleans())
    def begin_checkpoint(self, whole: bool) -> None:
        self.rig.runs.begin(self.rig.engine, self.rig.model.now_us, whole)

    @precondition(lambda self: self.rig.runs.open is not None)
    @rule(at_once=st.booleans())
    def go_on_with_checkpoint(self, at_once: bool) -> None:
        runs = self.rig.runs
        assert runs.open is not None
        if not runs.open.entries:
            runs.write(self.rig.engine, self.rig.payload)
        while runs.open.untold:
            self.rig.step(inputs=[runs.open.untold.pop(0)])
            if not at_once:
                return
        self.rig.step(inputs=[runs.finish(self.rig.engine)])

    @rule(data=st.data(), whole=st.booleans(), busy=st.booleans())
    def checkpoint(self, data: st.DataObject, whole: bool, busy: bool) -> None:
        """One from beginning to end; if it is busy, messages change while it is written."""
        runs = self.rig.runs
        if runs.open is None:
            self.begin_checkpoint(whole)
        while runs.open is not None:
            if busy:
                self.rig.step([self._sure(data.draw)])
            self.go_on_with_checkpoint(at_once=not busy)

    @precondition(lambda self: self.rig.runs.version)
    @rule(data=st.data(), steps=st.integers(1, 4))
    def time_passes_over_runs(self, data: st.DataObject, steps: int) -> None:
        """Minute by minute, while slices come late or not at all."""
        for _ in range(steps):
            span = data.draw(st.sampled_from([10, 70, 130, 300])) * SECOND_US
            self.rig.now_us += span
            self.rig.tick += span // data.draw(st.sampled_from([1, 1000]))
            self.rig.step()
            if self.rig.runs.wishes and data.draw(st.booleans()):
                self.slice_arrives(data, data.draw(st.sampled_from([1, 3, 100])))

    @precondition(lambda self: self.rig.runs.wishes)
    @rule(data=st.data(), rows_max=st.sampled_from([1, 3, 100]))
    def slice_arrives(self, data: st.DataObject, rows_max: int) -> None:
        wish = data.draw(st.sampled_from(self.rig.runs.wishes))
        self.rig.step(inputs=[self.rig.runs.answer(wish, rows_max)])

    @rule(data=st.data(), minutes=st.lists(st.integers(3, 20), min_size=2, max_size=6))
    def produce_for_later(self, data: st.DataObject, minutes: list[int]) -> None:
        """Due when runs have to be read for it."""
        due = [self.rig.now_us + m * MINUTE_US for m in minutes]
        payloads, topic = [self._payload() for _ in due], self._topic(data.draw)
        given = {"topic": topic, "payloads": payloads, "when": ("due", due)}
        given["priorities"] = self._priorities(data.draw, topic, len(due))
        self.rig.step([("produce", given)])

    # The end

    def teardown(self) -> None:
        if hasattr(self, "rig") and not self.rig.broken:
            self.rig.drain()


# Bounds so low that a few messages meet them: steps, pieces, chunks and tables.
SMALL: tuple[tuple[Any, str, int], ...] = (
    (staging, "LANDED_PER_STEP", LANDED_PER_STEP),
    # The model knows no bound: what is over dies in one step, after any leap of the clock.
    (expiry, "_LOOK_COST", 1),
    (turns, "TURN_ROWS", 3),
    (turns, "TURN_ROWS_MIN", 2),
    (turns, "SERVED_PER_STEP", 5),
    (turns, "_SHARE_MIN", 2),
    (slices, "ASKED_PER_STEP", 1),
    (calendar, "ROWS_PER_CALL", 3),
    (calendar, "_CHUNK_FIRST", 2),
    (calendar, "_CHUNK_MAX", 4),
    (partition, "_STALE_MIN", 4),
    (priority, "_RANKED_PER_CALL", 3),
    (calendar, "_LATE_RUNS", 1),
    (calendar, "_MERGED_ROWS_MAX", 8),
    (calendar, "_MERGED_AT_ONCE", 1),
    (calendar, "_MERGED_AHEAD_ROWS", 4),
    (histogram, "_GATHERED_MAX", 8),
    (histogram, "_DENSE_MINUTES", 100),
    (memory, "_CHUNK_ROWS", 4),
    (memory, "_GATHERED_MAX", 4),
    (index, "_BUCKETS_MIN", 1),
)


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)


# How long: about a third of a second an example.
QUICK = settings(max_examples=100, stateful_step_count=50)
THOROUGH = settings(max_examples=3_000, stateful_step_count=100)


@pytest.mark.timeout(600)
def test_engine_and_model_agree() -> None:
    run_state_machine_as_test(EngineMachine, settings=QUICK)


@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_engine_and_model_agree_for_long() -> None:
    run_state_machine_as_test(EngineMachine, settings=THOROUGH)
