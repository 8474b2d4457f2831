"""A local shard and the naive model of groups side by side, fed with the same commands.

`Rig.do` gives one command to both, compares the answer, and settles: it steps until the engine has
nothing more to do, checks every delivery against the model, that nothing that could go out is held
up while somebody waits, and all that groups tell of themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Keys, Rows
from fasti.core.log import commands as lo
from fasti.core.log.group import PLACE_BYTES
from fasti.core.replies import ConsumerReplaced, Deliver, SessionDoubted, Step
from fasti.errors import FastiError
from fasti.model import SECOND_US, SEQUENCE_BITS, SEQUENCE_MASK, Outcome, TopicSettings
from fasti.storage.file_storage import FileStorage
from fasti.storage.files.memory_files import MemoryFiles
from fasti.storage.local_shard import LocalShard
from tests.models.groups import GroupsModel

TOPIC = "log"
START_US = 1_700_000_000 * SECOND_US
_STEPS_MAX = 200


def int64s(values: Any) -> Any:
    return np.array(values, dtype=np.int64)


class Rig:
    """One log and its groups."""

    def __init__(self, settings: TopicSettings, window_rows: int, dead_max: int, leases: int):
        shard = ShardSettings(segment_bytes=1 << 16, memory_bytes=16 << 20, leases_max=leases)
        self.leases_max, self.shard_settings = leases, shard
        self.files = MemoryFiles()
        self.shard = LocalShard(FileStorage(self.files), shard)
        self.model = GroupsModel(settings, window_rows, dead_max)
        self.model.now_us = START_US
        self.shard.call(co.CreateTopic(TOPIC, settings), START_US, 0)
        # Leases that were handed out, good or not by now: (group, id, token).
        self.seen: list[tuple[str, int, int]] = []

    def close(self) -> None:
        self.shard.close()

    # Steps

    def do(self, command: Any, expected: Callable[[], Any], told: Callable[[Any], Any]) -> Any:
        """One command to both: `told` makes of the engine's reply what the model answers."""
        return self.do_all([(command, expected, told)])[0]

    def do_all(self, each: list[tuple[Any, Callable[[], Any], Callable[[Any], Any]]]) -> list[Any]:
        """Several commands in one step, as if one after another."""
        self.model.expire()
        self.model.ended.clear()
        answers: list[Any] = []
        for _, expected, _ in each:
            try:
                answers.append(expected())
            except FastiError as error:
                answers.append(type(error))
        commands = [command for command, _, _ in each]
        step = self.shard.step(commands, self.model.now_us, self.model.tick)
        for (command, _, told), wanted, reply in zip(each, answers, step.replies, strict=True):
            refused = reply.error is not None and not isinstance(command, co.Transaction)
            found = type(reply.error) if refused else told(reply)
            assert found == wanted, (command, found, wanted)
        self._settle(step, resumed={})
        return answers

    def lease(self, group: str, session: int, consumer: str, count: int, wait: bool) -> None:
        self.model.expire()
        self.model.ended.clear()
        line = self.model.groups[group].line if group in self.model.groups else None
        before = line.waiting.get(session) if line is not None else None
        credit = before[1] if before is not None else 0
        command = co.Lease(TOPIC, session, consumer, count, wait, group=group)
        try:
            resumed = self.model.lease(group, session, consumer, count)
            wanted = None
        except FastiError as error:
            resumed, wanted = {}, type(error)
        step = self.shard.step([command], self.model.now_us, self.model.tick)
        refused = step.replies[0].error
        found = type(refused) if refused is not None else None
        assert found == wanted, (command, refused, wanted)
        if wait or wanted is not None:
            self._settle(step, resumed)
            return
        # What it can't get at once it doesn't wait for. Keys may have to be read first.
        self._trim()
        self._effects(step, resumed)
        left = self.model.groups[group].line.can_take(session) and self._free()
        if left and not self.model.groups[group].ordered:
            assert not self.model.held_up(group), "at once, or not at all"
        self.model.limit(group, session, credit)
        self._settle(self._step(), {})

    def advance(self, now_us: int, tick: int) -> None:
        self.model.now_us += now_us
        self.model.tick += tick
        self.model.expire()
        self.model.ended.clear()
        self._settle(self._step(), {})

    def restart(self) -> None:
        self.shard.close()
        self.shard = LocalShard(FileStorage(self.files), self.shard_settings, self.model.tick)
        self.model.restart()
        self.check()
        self.advance(0, 0)

    def checkpoint(self) -> None:
        self.shard.checkpoint(self.model.now_us, self.model.tick)
        self.advance(0, 0)

    def _step(self) -> Step:
        return self.shard.step([], self.model.now_us, self.model.tick)

    def _settle(self, step: Step, resumed: dict[tuple[int, int], int]) -> None:
        self._trim()
        self._effects(step, resumed)
        for _ in range(_STEPS_MAX):
            later = step.wake_at_us is None or step.wake_at_us > self.model.now_us
            if not step.more and later and not step.effects:
                break
            step = self._step()
            self._effects(step, {})
        else:
            raise AssertionError("the engine goes round in circles")
        assert not self.model.ended, f"not told: {self.model.ended}"
        for name, group in self.model.groups.items():
            if any(map(group.line.can_take, group.line.waiting)) and self._free():
                assert not self.model.held_up(name), (name, self.model.held_up(name))
        self.check()

    def _free(self) -> bool:
        return self.shard.engine.memory.leases.free > 0

    def _trim(self) -> None:
        """Retention by age is the log's own business: the model of groups is told."""
        partitions = self.shard.engine.state.by_name[TOPIC].body.partitions
        for partition, log in zip(partitions, self.model.logs, strict=True):
            if partition.earliest > log.earliest:
                self.model.trim(partition.number, partition.earliest)

    def _effects(self, step: Step, resumed: dict[tuple[int, int], int]) -> None:
        for effect in step.effects:
            if isinstance(effect, ConsumerReplaced):
                word = "fenced" if effect.error is None else effect.error.code
                self.model.ended.remove((effect.session, word))
            elif isinstance(effect, Deliver):
                self._delivered(effect, resumed)
        told = (ConsumerReplaced, SessionDoubted)
        step.effects = [each for each in step.effects if not isinstance(each, told)]
        assert not resumed, "a consumer that comes back gets all that it has"

    def _delivered(self, effect: Deliver, resumed: dict[tuple[int, int], int]) -> None:
        ids = effect.ids.tolist()
        partition = ids[0] >> SEQUENCE_BITS
        offsets = [(each & SEQUENCE_MASK) - 1 for each in ids]
        self.seen += [(effect.group, each, effect.token) for each in ids]
        self._read(effect, partition, offsets)
        if (partition, offsets[0]) in resumed:
            for offset, attempts in zip(offsets, effect.attempts.tolist(), strict=True):
                assert resumed.pop((partition, offset)) == attempts
            self.model.resumed(effect.group, partition, offsets, effect.token)
            return
        rows = dict(zip(offsets, effect.attempts.tolist(), strict=True))
        assert len(rows) == len(ids)
        self.model.delivered(effect.group, effect.session, partition, rows, effect.token)

    def _read(self, effect: Deliver, partition: int, offsets: list[int]) -> None:
        payloads = self.shard.store.payloads.gather(effect.location).column("payload").to_pylist()
        assert payloads == [f"{partition}.{offset}".encode() for offset in offsets]

    def check(self) -> None:
        """All that groups tell of themselves."""
        command = lo.DescribeGroups(TOPIC)
        reply = self.shard.engine.step([command], self.model.now_us, self.model.tick).replies[0]
        told = {each["group"]: (each["ordered"], each["partitions"]) for each in reply.value}
        assert sorted(told) == sorted(self.model.groups)
        for name, group in self.model.groups.items():
            ordered, places = told[name]
            assert ordered == group.ordered
            for place, wanted in zip(places, self.model.describe(name), strict=True):
                found = {word: place[word] for word in wanted}
                assert found == wanted, (name, place["partition"], found, wanted)
            self._check_dead(name)
        memory = self.shard.engine.memory
        body = self.shard.engine.state.by_name[TOPIC].body
        self._check_sums(told)
        groups = body.groups.by_name.values()
        places = [place for group in groups for place in group.partitions.made()]
        counted = sum(PLACE_BYTES + place.counted_bytes for place in places)
        assert memory.groups_bytes == counted + sum(group.size_bytes for group in groups)
        live = memory.leases.active
        held = sum(
            row.lease is not None
            for group in self.model.groups.values()
            for place in group.places
            for row in place.rows.values()
        )
        assert live == held, "no lease is lost or left"

    def _check_sums(self, told: dict[str, Any]) -> None:
        """What is kept up with every event is what the partitions add up to."""
        command = lo.SumLog(TOPIC)
        reply = self.shard.engine.step([command], self.model.now_us, self.model.tick).replies[0]
        assert sorted(reply.value.groups) == sorted(told)
        for name, (lag, sums) in reply.value.groups.items():
            places = told[name][1]
            assert lag == sum(place["lag"] for place in places)
            for word in ("leased", "dead", "behind"):
                assert getattr(sums, word) == sum(place[word] for place in places), (name, word)
            assert reply.value.end == sum(place["end"] for place in places)
            assert reply.value.earliest == sum(place["earliest"] for place in places)

    def _check_dead(self, name: str) -> None:
        found, after_id = [], 0
        while True:
            command = lo.ListDead(TOPIC, name, after_id, 2)
            page = self.shard.engine.step([command], self.model.now_us, self.model.tick).replies[0]
            assert page.error is None
            for row, message_id in enumerate(page.ids.tolist()):
                reason = page.names["reason"][int(page.columns["reason"][row])]
                attempts = int(page.columns["attempts"][row])
                found.append((message_id, reason, attempts, int(page.columns["died_us"][row])))
            after_id = page.next_after_id
            if not after_id:
                break
        wanted = [
            (number << SEQUENCE_BITS | offset + 1, death.reason, death.attempts, death.at_us)
            for number, place in enumerate(self.model.groups[name].places)
            for offset, death in sorted(place.dead.items())
        ]
        assert found == wanted, (name, found, wanted)

    # Commands

    def produce(self, partition: int, keys: list[str | None]) -> None:
        command = self.produce_command(partition, keys)
        self.do(
            command, lambda: self.model.produce(partition, keys), lambda reply: reply.ids.tolist()
        )

    def produce_command(self, partition: int, keys: list[str | None]) -> co.Produce:
        first = self.model.logs[partition].end
        payloads = [f"{partition}.{first + place}".encode() for place in range(len(keys))]
        column = pa.array(keys, pa.string())
        rows = Rows.of(payloads, key=column)
        return co.Produce(TOPIC, rows, keys=Keys(column, (7, 11)), partition=partition)

    def use(self, verb: str, group: str, rows: list[tuple[int, int]], **more: Any) -> list[str]:
        command = self.use_command(verb, group, rows, **more)
        answers: list[str] = self.do(
            command, lambda: self.model.use(verb, group, rows, **more), words
        )
        return answers

    def use_command(self, verb: str, group: str, rows: list[tuple[int, int]], **more: Any) -> Any:
        kind = {"ack": co.Ack, "release": co.Release, "nack": co.Nack, "reject": co.Reject}
        given = dict(more)
        if "due_us" in given:
            given["when"] = co.When(due_us=int64s(given.pop("due_us")))
        ids, tokens = int64s([i for i, _ in rows]), int64s([token for _, token in rows])
        return kind.get(verb, co.Extend)(TOPIC, ids, tokens, group=group, **given)


def words(reply: Any) -> list[str]:
    """The outcomes of a reply."""
    return [Outcome(int(code)).word for code in reply.status]
