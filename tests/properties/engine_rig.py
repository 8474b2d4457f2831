"""An engine and the naive model side by side, fed with the same commands.

`Rig.step` gives a batch of operations to both and compares every answer, every delivery and the
whole state. An operation is a name and its arguments in plain Python, `("move", {...})`;
`to_command` makes the engine's command of it, and the model has a method of that name.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fasti.core import commands as co
from fasti.core.agenda import FOREVER
from fasti.core.engine import Engine
from fasti.core.keys import Keys, Rows
from fasti.core.priority.kind import PriorityPartition
from fasti.core.replies import (
    Buckets,
    ConsumerReplaced,
    Counts,
    Deliver,
    LoadSlice,
    Messages,
    SessionDoubted,
    Step,
)
from fasti.core.rows.arena import EXPIRES, STATE_MASK
from fasti.core.rows.location import is_in_run, number_of, row_of
from fasti.core.rows.snapshot import Snapshot, read_range
from fasti.core.timeline.partition import Partition
from fasti.core.timeline.reads import READY, STATE_WORDS
from fasti.errors import FastiError
from fasti.model import MINUTE_US, Outcome, State, make_id, partition_of
from tests.models.state import Answer, Message
from tests.models.timeline import Model
from tests.properties.fake_runs import FakeRuns

SEED = (7, 11)
Op = tuple[str, dict[str, Any]]


def int64s(values: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.int64)


def uint16s(values: Sequence[int] | None) -> np.ndarray[Any, Any] | None:
    return None if values is None else np.array(values, dtype=np.uint16)


def as_keys(keys: Sequence[str | None]) -> Keys:
    return Keys(pa.array(keys, pa.string()), SEED)


def to_when(when: Any) -> co.When:
    if when is None:
        return co.When()
    kind, values = when
    values = values if isinstance(values, int) else int64s(values)
    return co.When(due_us=values) if kind == "due" else co.When(delay_us=values)


def to_expires(expires: Any) -> co.Expires | None:
    if expires is None:
        return None
    kind, values = expires
    return co.Expires(**{f"{kind}_us": int64s(values)})


def to_target(arguments: dict[str, Any]) -> co.Target:
    if arguments.get("ids") is not None:
        return co.Target(ids=int64s(arguments["ids"]))
    return co.Target(keys=as_keys(arguments["keys"]))


def to_command(op: Op) -> Any:
    """The engine's command for an operation."""
    name, given = op
    if name == "produce":
        extra = {
            k: given[k]
            for k in ("owner", "on_conflict", "atomic", "producer", "producer_sequence", "stage")
            if k in given
        }
        keys = given.get("keys")
        columns = {} if keys is None else {"key": keys}
        return co.Produce(
            given["topic"],
            Rows.of(given["payloads"], **columns),
            to_when(given.get("when")),
            None if keys is None else as_keys(keys),
            given.get("explicit_partition"),
            priorities=uint16s(given.get("priorities")),
            expires=to_expires(given.get("expires")),
            **extra,
        )
    if name in ("update", "reprioritise", "move", "cancel"):
        common = {k: given[k] for k in ("owner",) if k in given}
        versions = given.get("versions", 0)
        common["versions"] = versions if isinstance(versions, int) else int64s(versions)
        target = to_target(given)
        if name == "update":
            common["priorities"] = uint16s(given.get("priorities"))
            return co.Update(given["topic"], target, Rows.of(given["payloads"]), **common)
        if name == "reprioritise":
            priorities = uint16s(given["priorities"])
            return co.Reprioritise(given["topic"], target, priorities, **common)
        if name == "move":
            common["expires"] = to_expires(given.get("expires"))
            return co.Move(given["topic"], target, to_when(given["when"]), **common)
        return co.Cancel(given["topic"], target, **common)
    if name == "redrive":
        keys = given.get("keys")
        return co.Redrive(
            given["topic"],
            int64s(given["ids"]),
            None if keys is None else as_keys(keys),
            to_when(given.get("when")),
        )
    if name == "purge":
        return co.Purge(given["topic"], int64s(given["ids"]))
    if name in ("extend", "ack", "release", "nack", "reject"):
        kind = {"extend": co.Extend, "ack": co.Ack, "release": co.Release, "nack": co.Nack}
        extra = {k: given[k] for k in ("length_us", "reason") if k in given}
        if "when" in given:
            extra["when"] = to_when(given["when"])
        ids, tokens = int64s(given["ids"]), int64s(given["tokens"])
        return kind.get(name, co.Reject)(given["topic"], ids, tokens, **extra)
    if name == "release_leases":
        ids = given.get("ids")
        wanted = None if ids is None else int64s(ids)
        return co.ReleaseLeases(given["topic"], given.get("consumer", ""), wanted)
    if name == "transaction":
        return co.Transaction([to_command(part) for part in given["commands"]])
    if name == "get":
        return co.Get(given["topic"], to_target(given))
    plain = {
        "create_topic": co.CreateTopic,
        "change_topic": co.ChangeTopic,
        "delete_topic": co.DeleteTopic,
        "pause_topic": co.PauseTopic,
        "lease": co.Lease,
        "detach": co.Detach,
        "heartbeat": co.Heartbeat,
        "unheard": co.Unheard,
        "heard": co.Heard,
        "publish": co.Publish,
        "drop_stage": co.DropStage,
        "count": co.Count,
        "forecast": co.Forecast,
    }
    return plain[name](**given)


class Rig:
    """The two, side by side; the journal between them; and a storage that forgets nothing."""

    def __init__(self, landed_per_step: int, leases_max: int = 64) -> None:
        self.leases_max = leases_max
        self.engine = self._new_engine()
        self.model = Model(landed_per_step)
        self.now_us, self.tick = 1_000_000_000_000_000, 5_000_000
        # Every frame of the journal, as it was when it was made: (sequence, events, rows).
        self.journal: list[tuple[int, list[Any], Rows | None]] = []
        self._frames_made: list[list[Any]] = []
        self.runs = FakeRuns()
        self.keys_used: dict[str, set[str]] = {}
        self.ids_used: dict[str, list[int]] = {}
        self.tokens_used: dict[int, list[int]] = {}
        self.last = Step()
        # By number: the model as it was, when that was, and until when it can be read.
        self.snapshots: dict[int, tuple[Model, Snapshot]] = {}
        self.broken = False

    def _new_engine(self) -> Engine:
        return Engine(memory_bytes=64 << 20, leases_max=self.leases_max)

    # Steps

    def step(self, ops: Sequence[Op] = (), inputs: Sequence[Any] = ()) -> list[Any]:
        """One step of both. `inputs` are storage's, which the model knows nothing of."""
        # Until the end of this step something may be wrong, and then there is nothing to drain.
        self.broken = True
        idle = not ops and not inputs and not self.last.more
        before = self.last
        named = [to_command(op) for op in ops]
        step = self.engine.step([*inputs, *named], self.now_us, self.tick)
        self.last = step
        self._record(step)
        if idle and not self._due(before):
            assert not step.frames, f"woke too late: {before.wake_at_us}, {before.wake_at_tick}"
        self.model.begin_step(self.now_us, self.tick)
        effects = [each for each in step.effects if not isinstance(each, SessionDoubted)]
        self._check_doubted(step)
        replies = step.replies[len(inputs) :]
        for op, reply in zip(ops, replies, strict=True):
            self._run_model(op, reply, effects)
        self.model.land()
        for effect in effects:
            self._take_effect(effect)
        if not step.more:
            self._check_nothing_waits(self.model.topics, self.model.pressing)
        self.check_state()
        self.broken = False
        return replies

    def _check_doubted(self, step: Step) -> None:
        """Whoever let leases run out is told to be in doubt."""
        told = {each.session for each in step.effects if isinstance(each, SessionDoubted)}
        doubted = {session for topic in self.model.topics.values() for session in topic.doubts}
        assert told <= doubted

    def settle(self) -> None:
        """Steps until there is no more to do at this moment."""
        for _ in range(1_000):
            if not self.last.more and not self._due(self.last):
                return
            self.step()
        raise AssertionError("the engine never comes to rest")

    def _due(self, before: Step) -> bool:
        by_clock = before.wake_at_us is not None and self.now_us >= before.wake_at_us
        return by_clock or (before.wake_at_tick is not None and self.tick >= before.wake_at_tick)

    def _record(self, step: Step) -> None:
        for frame in step.frames:
            number = self.journal[-1][0] + 1 if self.journal else 1
            assert frame.sequence == number, "frames have no holes"
            self.journal.append((frame.sequence, copy.deepcopy(frame.events), frame.rows))
            self._frames_made.append(frame.events)

    def _run_model(self, op: Op, reply: Any, effects: list[Any]) -> None:
        name, given = op
        given = dict(given)
        if name == "produce":
            given = self._told_partition(given, reply)
        if name == "transaction":
            self._run_transaction(given, reply)
            return
        wait = given.pop("wait", True)
        before = 0
        if name == "lease" and given["topic"] in self.model.topics:
            before = self.model.credit(given["topic"], given["session"])
        try:
            expected = getattr(self.model, name)(**given)
        except FastiError as error:
            refused, expected = error.code, None
        else:
            refused = None
        assert (reply.error and reply.error.code) == refused, (name, reply.error)
        if refused:
            return
        self._note(given, expected)
        if name == "lease":
            self._check_resumed(given, expected, effects)
            if not wait:
                self._served_at_once(given, before, effects)
        elif name == "publish":
            rows, taken = reply.value
            assert (rows, sorted(taken.tolist())) == expected
        elif name in ("drop_stage", "heartbeat", "pause_topic", "unheard"):
            assert reply.value == expected
        elif isinstance(reply, Counts):
            assert reply.states == expected
        elif isinstance(reply, Buckets):
            got = dict(zip(reply.start_us.tolist(), reply.count.tolist(), strict=True))
            assert got == expected
        elif isinstance(reply, Messages):
            self._check_get(reply, expected)
        elif name == "release_leases" and "ids" not in given:
            # In whatever order: by slot.
            assert sorted(reply.ids.tolist()) == sorted(answer.id for answer in expected)
            assert not reply.status.any()
        elif isinstance(expected, list):
            compare(reply, expected)

    def _told_partition(self, given: dict[str, Any], reply: Any) -> dict[str, Any]:
        """The model is told which partition the engine chose for rows without a key."""
        given = dict(given)
        explicit = given.pop("explicit_partition", None)
        keys = given.get("keys") or [None] * len(given["payloads"])
        if explicit is not None:
            given["partition"] = explicit
        elif len(reply.ids) == len(keys) and None in keys:
            given["partition"] = partition_of(int(reply.ids[keys.index(None)]))
        return given

    def _run_transaction(self, given: dict[str, Any], reply: Any) -> None:
        parts = []
        replies = {} if reply.error is not None and not hasattr(reply, "replies") else reply.replies
        for place, (name, arguments) in enumerate(given["commands"]):
            if name == "produce":
                known = place < len(replies)
                arguments = (
                    self._told_partition(arguments, replies[place])
                    if known
                    else {k: v for k, v in arguments.items() if k != "explicit_partition"}
                )
            parts.append((name, arguments))
        committed, answers, error = self.model.transaction(parts)
        assert reply.committed == committed
        assert (reply.error and reply.error.code) == (error and error.code)
        assert len(reply.replies) == len(answers)
        for (_, arguments), part, expected in zip(parts, reply.replies, answers, strict=False):
            compare(part, expected)
            self._note(arguments, expected)

    def _note(self, given: dict[str, Any], expected: Any) -> None:
        topic = given.get("topic")
        if "payloads" in given and isinstance(expected, list) and topic:
            known = self.ids_used.setdefault(topic, [])
            known += [a.id for a in expected if a.status == Outcome.OK and a.id not in known]
            for key in given.get("keys") or ():
                if key is not None:
                    self.keys_used.setdefault(topic, set()).add(key)

    # Deliveries

    def _check_resumed(
        self, given: dict[str, Any], expected: list[Message], effects: list[Any]
    ) -> None:
        wanted = {message.id for message in expected}
        got: set[int] = set()
        while effects and got != wanted:
            effect = effects.pop(0)
            if isinstance(effect, Deliver):
                assert effect.session == given["session"]
                assert effect.topic == given["topic"]
                ids = effect.ids.tolist()
                assert set(ids) <= wanted - got
                got |= set(ids)
                self.model.resumed(effect.topic, effect.token, ids)
                self._check_delivered(effect)
            else:
                assert isinstance(effect, ConsumerReplaced)
        assert got == wanted

    def _served_at_once(self, given: dict[str, Any], before: int, effects: list[Any]) -> None:
        """A lease that doesn't wait was served within its command, everybody else with it."""
        while effects and isinstance(effects[0], (Deliver, ConsumerReplaced)):
            self._take_effect(effects.pop(0))
        credit = self.model.credit(given["topic"], given["session"])
        if credit > before:
            # All that may go, not only what must: it doesn't wait for the next batch.
            self._check_nothing_waits([given["topic"]], self.model.available)
        self.model.limit_credit(given["topic"], given["session"], min(before, credit))

    def _take_effect(self, effect: Any) -> None:
        if isinstance(effect, Deliver):
            ids = effect.ids.tolist()
            partition = self._partition(effect.topic, partition_of(ids[0]))
            floor_us = partition.times.base_us if isinstance(partition, PriorityPartition) else 0
            self.model.handed_out(
                effect.topic,
                effect.session,
                effect.token,
                ids,
                partition.times.loaded_until_us,
                floor_us,
            )
            self._check_delivered(effect)
        elif isinstance(effect, LoadSlice):
            self.runs.asked(effect)
        else:
            assert isinstance(effect, ConsumerReplaced)

    def _check_delivered(self, effect: Deliver) -> None:
        for row, message_id in enumerate(effect.ids.tolist()):
            message = self.model.topics[effect.topic].messages[message_id]
            assert int(effect.due_us[row]) == message.due_us
            assert int(effect.version[row]) == message.version
            assert int(effect.attempts[row]) == message.attempts
            assert (0 if effect.priority is None else int(effect.priority[row])) == message.priority
            assert self.payload(int(effect.location[row])) == message.payload
            ends = 0 if effect.expires_us is None else int(effect.expires_us[row])
            assert ends == message.expires_us
            assert (None if effect.reasons is None else effect.reasons[row]) == (
                message.reason or None
            )
            self.tokens_used.setdefault(message_id, []).append(effect.token)

    def _check_nothing_waits(
        self, topics: Iterable[str], find: Callable[[str, int], list[Message]]
    ) -> None:
        """Nobody waits in vain: what is to go and in memory has gone to those with credit."""
        room = self.engine.memory.leases.free
        for name in topics:
            topic = self.model.topics[name]
            for number in range(topic.settings.partitions):
                if any(self.model.can_take(name, its) for its, _, _ in topic.waiting) and room:
                    loaded = self._partition(name, number).times.loaded_until_us
                    if topic.settings.kind == "priority" and loaded <= self.model.now_us:
                        continue  # The most urgent may not be in memory yet.
                    left = [m for m in find(name, number) if m.due_us < loaded]
                    assert not left, f"{topic.waiting} wait for {left}"

    def payload(self, location: int) -> bytes:
        """What lies at a location of the journal or of a run."""
        at = int64s([location])
        number, row = int(number_of(at)[0]), int(row_of(at)[0])
        if is_in_run(at)[0]:
            return self.runs.blocks[number][row]
        sequence, _, rows = self.journal[number - 1]
        assert sequence == number
        assert rows is not None
        return rows.batch.column("payload")[row].as_py()

    # Restarts and checkpoints

    def restart(self) -> None:
        """A new engine from the journal, which must be the old one's twin."""
        for (_, kept, _), made in zip(self.journal, self._frames_made, strict=True):
            assert same(kept, made), "an event was changed after it was journaled"
        before = self.engine
        self.engine = self._new_engine()
        for sequence, events, _ in self.journal:
            self.engine.replay(sequence, copy.deepcopy(events))
        self.engine.start(self.tick)
        assert self.engine.memory.leases.next_token == before.memory.leases.next_token
        assert self.engine.state.next_frame == before.state.next_frame
        assert self.engine.state.next_topic == before.state.next_topic
        self.runs = FakeRuns()
        self.snapshots.clear()
        self.model.restart(self.tick, self.engine.state.last_at_us)
        self.last = Step(more=True)
        self.check_state()

    # State

    def _partition(self, topic: str, number: int) -> Partition:
        return self.engine.state.by_name[topic].partitions[number]

    def check_state(self) -> None:
        """The engine's whole state is the model's."""
        state = self.engine.state
        assert set(state.by_name) == set(self.model.topics)
        assert {t.number: t.name for t in state.topics.values()} == {
            t.number: n for n, t in state.by_name.items()
        }
        for name, topic in self.model.topics.items():
            assert state.by_name[name].settings == topic.settings
            assert state.by_name[name].paused == topic.paused
            rows: dict[int, Any] = {}
            for partition in state.by_name[name].partitions:
                rows |= self._rows_of(partition)
                self._check_partition(name, partition)
            assert set(rows) == set(topic.messages)
            for message_id, row in rows.items():
                self._check_row(topic.messages[message_id], row)
                if topic.settings.kind == "priority":
                    assert row["priority"] == topic.messages[message_id].priority
        self._check_stages()
        self._check_producers()
        held = sum(
            m.state == State.LEASED for t in self.model.topics.values() for m in t.messages.values()
        )
        leases = self.engine.memory.leases
        assert leases.active == held == len(leases.live())
        self._check_reasons()
        self.runs.check_marks(self.engine)

    def _check_reasons(self) -> None:
        """A reason is known as long as a message has it."""
        reasons = self.engine.memory.reasons
        everybody = [m for t in self.model.topics.values() for m in t.messages.values()]
        uses = Counter(message.reason for message in everybody if message.reason)
        assert uses == {
            name: reasons._uses[number] for number, name in enumerate(reasons.all()) if name
        }

    def _rows_of(self, partition: Partition) -> dict[int, dict[str, Any]]:
        view = partition.ledger.view()
        last = view.next_sequence
        columns = read_range(view, self.engine.memory.arena, 0, last)
        if not columns:
            return {}
        values = {name: column.tolist() for name, column in columns.items()}
        ids = [make_id(partition.number, s) for s in values["sequence"]]
        assert len(set(ids)) == len(ids), "a row stands twice"
        return {i: {n: c[k] for n, c in values.items()} for k, i in enumerate(ids)}

    def _check_row(self, message: Message, row: dict[str, Any]) -> None:
        memory = self.engine.memory
        assert row["flags"] & int(STATE_MASK) == message.state
        assert row["due"] == message.due_us
        assert row["version"] == message.version
        assert row["attempts"] == message.attempts
        assert memory.owners.name(row["owner"]) == message.owner
        assert self.payload(row["location"]) == message.payload
        if message.state == State.LEASED:
            held = row["lease"]
            assert memory.leases.token[held] == message.token or message.token == -1
            assert memory.consumers.name(int(memory.leases.consumer[held])) == message.consumer
            assert memory.leases.length[held] == message.length_us
            assert memory.leases.until[held] == message.until_tick
            assert memory.leases.hold_until[held] == message.hold_tick
            assert memory.leases.expiry_bound <= message.until_tick
            assert memory.leases.since[held] == message.leased_us
            assert memory.reasons.name(int(memory.leases.reason[held])) == message.reason
        else:
            assert memory.reasons.name(row["lease"]) == message.reason
        if message.state == State.DEAD:
            assert row["moment"] == message.died_us
        expires = bool(row["flags"] & int(EXPIRES))
        assert (row["moment"] if expires else 0) == message.expires_us

    def _check_partition(self, name: str, partition: Partition) -> None:
        topic = self.model.topics[name]
        mine = [m for m in topic.messages.values() if partition_of(m.id) == partition.number]
        for state in (State.SCHEDULED, State.LEASED, State.DEAD, State.STAGED):
            assert partition.counts[state] == sum(m.state == state for m in mine), state
        assert partition.ledger.next_sequence == topic.next_sequence.get(partition.number, 1)
        assert partition.times.histogram.total == int(partition.counts[State.SCHEDULED])
        since_us = self.model.now_us - topic.settings.outcome_age_us
        ids = [i for i in topic.ended if partition_of(i) == partition.number]
        sequences = int64s([i & ((1 << 51) - 1) for i in ids])
        states, times = partition.outcomes.find(sequences, since_us)
        for place, message_id in enumerate(ids):
            how, at_us = topic.ended[message_id]
            if at_us >= since_us:
                assert State(int(states[place])).name == how.name
                assert int(times[place]) == at_us

    def _check_stages(self) -> None:
        stages = self.engine.state.stages
        assert set(stages) == set(self.model.stages)
        for name, stage in self.model.stages.items():
            mine = stages[name]
            ids = [make_id(b.partition, s) for b in mine.batches for s in b.sequences.tolist()]
            assert ids == stage.ids
            assert mine.published == stage.published
            assert (name in self.engine.state.publishing) == stage.published

    def _check_producers(self) -> None:
        for name, producer in self.model.producers.items():
            if producer.known_until_us >= self.model.now_us:
                known = self.engine.state.producers.find(name, self.model.now_us)
                assert known is not None
                assert known.last_sequence == producer.last_sequence
                assert [r.sequence for r in known.receipts] == sorted(producer.receipts)

    def check_keys(self) -> None:
        """Every key ever used names what the model says, or nothing."""
        for name, keys in self.keys_used.items():
            if name in self.model.topics and keys:
                self.step([("get", {"topic": name, "keys": sorted(keys)})])

    def check_reads(self) -> None:
        """Counts and forecasts equal a scan."""
        for name in self.model.topics:
            from_us = self.now_us // MINUTE_US * MINUTE_US - 60 * MINUTE_US
            wide = {"from_us": 0, "to_us": FOREVER, "bucket_us": MINUTE_US * (1 << 35)}
            near = {"from_us": from_us, "to_us": from_us + 7_200 * MINUTE_US}
            self.step(
                [
                    ("count", {"topic": name}),
                    ("forecast", {"topic": name, **wide}),
                    ("forecast", {"topic": name, **near, "bucket_us": 7 * MINUTE_US}),
                ]
            )

    def _check_get(self, reply: Messages, expected: list[tuple[Outcome, Message | None]]) -> None:
        assert [Outcome(s) for s in reply.status.tolist()] == [status for status, _ in expected]
        for row, (_, message) in enumerate(expected):
            if message is not None:
                self._check_shown(reply, row, message, self.model.now_us, self.model.tick)

    def _check_shown(
        self, reply: Messages, row: int, message: Message, now_us: int, tick: int
    ) -> None:
        columns = {name: column[row].item() for name, column in reply.columns.items()}
        assert int(reply.ids[row]) == message.id
        assert columns["due_us"] == message.due_us
        assert columns["version"] == message.version
        assert columns["attempts"] == message.attempts
        assert columns.get("priority", 0) == message.priority
        words = {**{int(s): s.name.lower() for s in State}, **STATE_WORDS}
        assert words[columns["state"]] == message.visible_state(now_us), (READY, columns)
        assert reply.names["owner"][columns["owner"]] == message.owner
        consumer = message.consumer if message.state == State.LEASED else ""
        assert reply.names["consumer"][columns["consumer"]] == consumer
        assert reply.names["reason"][columns["reason"]] == message.reason
        leased = message.state == State.LEASED
        assert columns["leased_us"] == (message.leased_us if leased else 0)
        assert columns["lease_until_us"] == (now_us + message.until_tick - tick if leased else 0)
        assert columns["expires_us"] == message.expires_us
        assert columns["died_us"] == (message.died_us if message.state == State.DEAD else 0)
        assert self.payload(columns["location"]) == message.payload

    # Lists and snapshots

    def list_all(self, topic: str, limit: int, filters: dict[str, Any]) -> None:
        """Reads all pages and compares them with the model."""
        after, pages = 0, 0
        rows: list[tuple[Messages, int]] = []
        while True:
            command = co.List(topic, after_id=after, limit=limit, **filters)
            step = self.engine.step([command], self.now_us, self.tick)
            assert not step.frames, "reading changes nothing"
            (reply,) = step.replies
            self.model.begin_step(self.now_us, self.tick)
            assert reply.error is None, reply.error
            assert len(reply.ids) <= limit
            rows += [(reply, row) for row in range(len(reply.ids))]
            for effect in step.effects:
                self._take_effect(effect)
            pages += 1
            assert pages < 1000
            if not reply.next_after_id:
                break
            assert reply.next_after_id > after
            after = reply.next_after_id
        expected = self.model.listed(topic, self.model.now_us, **filters)
        assert [int(reply.ids[row]) for reply, row in rows] == [m.id for m in expected]
        for (reply, row), message in zip(rows, expected, strict=True):
            self._check_shown(reply, row, message, self.model.now_us, self.model.tick)

    def check_snapshot(self, number: int) -> None:
        """A snapshot shows what the model was when it was taken, until its deadline."""
        self.step()
        model, snapshot = self.snapshots[number]
        assert snapshot.closed == (snapshot.deadline_us <= self.model.now_us)
        if snapshot.closed:
            return
        rows: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in model.topics}
        for topic, partition in snapshot.ledgers:
            for columns in snapshot.rows(topic, partition):
                values = {name: column.tolist() for name, column in columns.items()}
                for place, sequence in enumerate(values["sequence"]):
                    row = {name: column[place] for name, column in values.items()}
                    rows[snapshot.topics[topic][0]][make_id(partition, sequence)] = row
        for name, found in rows.items():
            messages = model.topics[name].messages
            assert set(found) == set(messages)
            for message_id, row in found.items():
                self._check_kept(snapshot, model.tick, messages[message_id], row)

    def _check_kept(
        self, snapshot: Snapshot, tick: int, message: Message, row: dict[str, Any]
    ) -> None:
        names, leases, held = snapshot.names, snapshot.leases, row["lease"]
        assert row["flags"] & int(STATE_MASK) == message.state
        assert row["due"] == message.due_us
        assert row["version"] == message.version
        assert row["attempts"] == message.attempts
        assert names["owner"][row["owner"]] == message.owner
        assert self.payload(row["location"]) == message.payload
        if message.state == State.LEASED:
            assert names["consumer"][leases.consumer[held]] == message.consumer
            assert names["reason"][leases.reason[held]] == message.reason
            assert leases.since_us[held] == message.leased_us
            assert leases.until_us[held] == snapshot.at_us + message.until_tick - tick
        else:
            assert names["reason"][held] == message.reason

    def apply_read(self, step: Step, keep: list[Model] | None = None) -> None:
        """After a step of the engine alone that only read: the model's time goes on too.

        What the reading saw, before published rows landed in the same step, is added to `keep`.
        """
        self._record(step)
        self.last = step
        self.model.begin_step(self.now_us, self.tick)
        if keep is not None:
            keep.append(copy.deepcopy(self.model))
        self.model.land()
        for effect in step.effects:
            self._take_effect(effect)

    # The end

    def drain(self) -> None:
        """Far in the future everything live is handed out once, in the end, and nothing is left."""
        self.settle()
        for number in self.snapshots:
            self.check_snapshot(number)
        while self.runs.open is not None and self.runs.open.untold:
            self.step(inputs=[self.runs.open.untold.pop(0)])
        for name in self.model.topics:
            self.step([("pause_topic", {"name": name, "paused": False})])
        self.now_us += 5_000 * 86_400 * 1_000_000
        self.tick += 5_000 * 86_400 * 1_000_000
        self.step()
        sessions = 1_000_000
        for _ in range(300):
            self.settle()
            for wish in list(self.runs.wishes):
                self.step(inputs=[self.runs.answer(wish, 100)])
            pending = False
            for name, topic in self.model.topics.items():
                leased = [m for m in topic.messages.values() if m.state == State.LEASED]
                if leased:
                    pending = True
                    ids, tokens = [m.id for m in leased], [m.token for m in leased]
                    self.step([("ack", {"topic": name, "ids": ids, "tokens": tokens})])
                if any(m.state == State.SCHEDULED for m in topic.messages.values()):
                    pending = True
                    sessions += 1
                    wish = {"topic": name, "session": sessions, "consumer": "last", "count": 100}
                    self.step([("lease", wish)])
            if not pending and not self.last.more:
                break
        for topic in self.model.topics.values():
            left = [m for m in topic.messages.values() if m.state != State.DEAD]
            assert not left, f"never handed out: {left}"
        self.restart()


def compare(reply: Any, expected: list[Answer]) -> None:
    """Every row got the outcome that the model says."""
    statuses = [Outcome(s) for s in reply.status.tolist()]
    assert statuses == [a.status for a in expected], (statuses, expected)
    for row, answer in enumerate(expected):
        if answer.status in (Outcome.DUPLICATE, Outcome.ABORTED) and not answer.version:
            continue
        if answer.status != Outcome.ABORTED:
            assert int(reply.ids[row]) == answer.id, (row, answer)
            assert int(reply.versions[row]) == answer.version, (row, reply.versions, expected)
        if answer.status in (Outcome.LEASED, Outcome.DONE, Outcome.CANCELLED):
            assert reply.at_us is not None
            assert int(reply.at_us[row]) == answer.at_us, (row, answer)
        if answer.status == Outcome.LEASED:
            assert reply.by[row] == answer.by


def same(left: Any, right: Any) -> bool:
    """Whether two lists of events are equal, arrays included."""
    return repr(left) == repr(right)
