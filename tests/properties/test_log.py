"""Logs on a local shard beside the naive model: appends, retention, checkpoints, restarts.

After every step each row of each partition is read back and compared, with where it was appended
and when; so is what the partitions say of themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
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

from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Keys, Rows
from fasti.core.log import partition as log_partition
from fasti.core.log.commands import DescribeLog, FindOffset, ReadLog, Truncate
from fasti.errors import InvalidArgument
from fasti.model import DAY_US, SECOND_US, SEQUENCE_BITS, TopicSettings
from fasti.storage import log_blocks
from fasti.storage.file_storage import FileStorage
from fasti.storage.files.memory_files import MemoryFiles
from fasti.storage.local_shard import LocalShard
from fasti.storage.log_rows import offset_at, read_piece
from tests.models.log import LogModel, Topic

START_US = 1_700_000_000 * SECOND_US
SHARD = ShardSettings(segment_bytes=1 << 16, memory_bytes=16 << 20, leases_max=256)
TOPICS = {"one": 1, "three": 3}
KEYS = ("a", "b", "c", "d", None)
SPANS_US = [0, 1, SECOND_US, 7 * SECOND_US, 60 * SECOND_US, DAY_US]


@st.composite
def log_settings(draw: Any, partitions: int) -> TopicSettings:
    return TopicSettings(
        kind="log",
        partitions=partitions,
        segment_age_us=draw(st.sampled_from([0, 8 * SECOND_US, 60 * SECOND_US])),
        segment_bytes=draw(st.sampled_from([4096, 10_000])),
        retained_bytes=draw(st.sampled_from([0, 0, 8192, 20_000])),
    )


class LogMachine(RuleBasedStateMachine):
    """Draws what happens to logs."""

    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFiles()
        self.shard = LocalShard(FileStorage(self.files), SHARD)
        self.model = LogModel()
        self.model.now_us = START_US
        self.sent = 0
        self.plan: Any = None
        self.written: Any = None

    @initialize(data=st.data())
    def create(self, data: st.DataObject) -> None:
        self._call(co.CreateTopic("mail"))
        for name in TOPICS:
            self._create(data, name)

    def _create(self, data: st.DataObject, name: str) -> None:
        topic = data.draw(log_settings(TOPICS[name]))
        self._call(co.CreateTopic(name, topic))
        self.model.create_topic(name, topic)
        self._end_step()

    # Steps

    def _call(self, command: Any) -> Any:
        reply = self.shard.call(command, self.model.now_us, 0)
        assert getattr(reply, "error", None) is None, reply.error
        return reply

    def _end_step(self) -> None:
        self.model.end_step()
        self.compare()

    def _rows(self, data: st.DataObject) -> dict[str, Any]:
        count = data.draw(st.integers(1, 6))
        wide = data.draw(st.sampled_from([1, 1, 800, 3000]))
        payloads = []
        for _ in range(count):
            self.sent += 1
            payloads.append(b"%d." % self.sent + bytes(wide))
        keys = None
        if data.draw(st.booleans()):
            keys = data.draw(st.lists(st.sampled_from(KEYS), min_size=count, max_size=count))
        return {"payloads": payloads, "keys": keys}

    def _command(self, data: st.DataObject) -> tuple[co.Produce, dict[str, Any]]:
        topic = data.draw(st.sampled_from(sorted(TOPICS)))
        given = self._rows(data)
        partition = None
        if data.draw(st.integers(0, 3)) == 0:
            partition = data.draw(st.integers(0, TOPICS[topic] - 1))
        keys = given["keys"]
        rows = Rows.of(given["payloads"], key=keys)
        hashed = None if keys is None else Keys(pa.array(keys, pa.string()), self.shard.store.seed)
        command = co.Produce(topic, rows, keys=hashed, partition=partition)
        given |= {"topic": topic, "partition": partition}
        return command, given | {"row_bytes": len(rows.encoded) / len(rows)}

    def _produced(self, reply: Any, given: dict[str, Any]) -> None:
        """The model does the same, and must arrive at the same ids."""
        keys = given["keys"] or [None] * len(given["payloads"])
        free = [int(reply.ids[row]) for row, key in enumerate(keys) if key is None]
        chosen = free[0] >> SEQUENCE_BITS if free else 0
        assert self.model.produce(**given, chosen=chosen) == reply.ids.tolist()

    # Rules

    @rule(data=st.data())
    def produce(self, data: st.DataObject) -> None:
        command, given = self._command(data)
        self._produced(self._call(command), given)
        self._end_step()

    @rule(data=st.data(), again=st.integers(0, 7))
    def produce_numbered(self, data: st.DataObject, again: int) -> None:
        command, given = self._command(data)
        name = data.draw(st.sampled_from(["p1", "p2"]))
        known = self.model.producers.get(name)
        number = (known.last_sequence if known else 0) + 1 - again
        if again and (known is None or number not in known.receipts):
            return
        command.producer, command.producer_sequence = name, number
        if again:
            receipt = self.model.producers[name].receipts[number]
            count = min(len(receipt), len(given["payloads"]))
            if count != len(receipt) or count != len(given["payloads"]):
                return
        reply = self._call(command)
        assert reply.sent_before == bool(again)
        self._produced(reply, given | {"producer": name, "producer_sequence": number})
        self._end_step()

    @rule(data=st.data(), parts=st.integers(1, 4), fails=st.sampled_from(["", "row", "error"]))
    def transaction(self, data: st.DataObject, parts: int, fails: str) -> None:
        drawn = [self._command(data) for _ in range(parts)]
        commands: list[Any] = [command for command, _ in drawn]
        commands.insert(1, co.Produce("mail", Rows.of([b"m"])))
        if fails == "row":
            commands.append(co.Ack("mail", np.array([1 << 40]), np.array([3])))
        elif fails == "error":
            commands.append(co.Produce("one", Rows.of([b"x"]), partition=9))
        saved = self.model.save()
        reply = self.shard.call(co.Transaction(commands), self.model.now_us, 0)
        assert reply.committed == (not fails)
        answers = [answer for place, answer in enumerate(reply.replies) if place != 1]
        for (_, given), answer in zip(drawn, answers, strict=False):
            self._produced(answer, given)
        if fails:
            self.model.restore(saved)
        self._end_step()

    @rule(data=st.data(), topic=st.sampled_from(sorted(TOPICS)))
    def truncate(self, data: st.DataObject, topic: str) -> None:
        number = data.draw(st.integers(0, TOPICS[topic] - 1))
        partition = self.model.partition(topic, number)
        before = data.draw(st.integers(max(0, partition.earliest - 1), partition.end + 1))
        reply = self.shard.call(Truncate(topic, number, before), self.model.now_us, 0)
        if before > partition.end:
            with pytest.raises(InvalidArgument):
                self.model.truncate(topic, number, before)
            assert isinstance(reply.error, InvalidArgument)
        else:
            self.model.truncate(topic, number, before)
            assert reply.error is None
        self._end_step()

    @rule(span_us=st.sampled_from(SPANS_US))
    def pass_time(self, span_us: int) -> None:
        self.model.now_us += span_us
        self.shard.step([], self.model.now_us, 0)
        self._end_step()

    @rule(data=st.data(), name=st.sampled_from(sorted(TOPICS)))
    def change(self, data: st.DataObject, name: str) -> None:
        topic = data.draw(log_settings(TOPICS[name]))
        self._call(co.ChangeTopic(name, topic))
        self.model.change_topic(name, topic)
        self._end_step()

    @rule(data=st.data(), name=st.sampled_from(sorted(TOPICS)), sure=st.integers(0, 5))
    def delete(self, data: st.DataObject, name: str, sure: int) -> None:
        if not sure:
            self._call(co.DeleteTopic(name))
            self.model.delete_topic(name)
            self._create(data, name)

    @rule()
    def checkpoint(self) -> None:
        while self.plan is not None:
            self.go_on()
        self.shard.checkpoint(self.model.now_us, 0)
        self.compare()

    @rule()
    def go_on(self) -> None:
        """A checkpoint in parts, with other steps in between."""
        store, engine = self.shard.store, self.shard.engine
        if self.plan is None:
            self.plan = self.shard.begin_checkpoint(self.model.now_us, 0)
        elif self.written is None:
            self.written = store.write_checkpoint(self.plan, lambda _: None, lambda _: None)
        else:
            written, finished = self.written
            for each in written.inputs():
                self._call(each)
            self._call(finished)
            self._call(co.DropSnapshot(self.plan.snapshot.number))
            store.clean_up(engine.snapshots)
            self.plan = self.written = None
        self.compare()

    @precondition(lambda self: self.plan is not None and self.written is None)
    @rule()
    def give_checkpoint_up(self) -> None:
        self._call(co.DropSnapshot(self.plan.snapshot.number))
        self.plan = None

    @rule()
    def restart(self) -> None:
        self.shard.close()
        self.shard = LocalShard(FileStorage(self.files), SHARD)
        self.plan = self.written = None
        self.compare()

    # Comparing

    def compare(self) -> None:
        for name, topic in self.model.topics.items():
            described = self._call(DescribeLog(name)).value
            for number, partition in enumerate(topic.partitions):
                said = described[number]
                assert said["end"] == partition.end
                assert said["earliest"] == partition.earliest
                assert said["bytes"] == partition.size_bytes
                assert said["segments"] == len(partition.segments)
                self._compare_rows(name, number, topic)

    def _compare_rows(self, name: str, number: int, topic: Topic) -> None:
        partition = topic.partitions[number]
        payloads = self.shard.store.payloads
        found = []
        reached = partition.earliest
        while reached < partition.end:
            for piece in self._call(ReadLog(name, number, reached)).pieces:
                assert piece.first_offset == reached
                for row in read_piece(payloads, piece).to_pylist():
                    found.append((reached, row["payload"], row["key"], row["created_us"]))
                    reached += 1
        rows = partition.rows
        assert found == [(row.offset, row.payload, row.key, row.at_us) for row in rows]
        for time_us in {0, *(row.at_us for row in rows), self.model.now_us + 1}:
            page = self._call(FindOffset(name, number, time_us))
            at = offset_at(payloads, page.pieces[0], time_us) if page.pieces else page.end
            assert at == self.model.find(name, number, time_us)
        if partition.earliest:
            gone = self.shard.call(
                ReadLog(name, number, partition.earliest - 1), self.model.now_us, 0
            )
            assert gone.error.code == "gone"

    def teardown(self) -> None:
        self.shard.close()


QUICK = settings(max_examples=40, stateful_step_count=40)
THOROUGH = settings(max_examples=2_000, stateful_step_count=80)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a handful of rows has many blocks, pages and crumbs."""
    monkeypatch.setattr(log_blocks, "BLOCK_ROWS_MAX", 16)
    monkeypatch.setattr(log_blocks, "BLOCK_BYTES_MAX", 8192)
    monkeypatch.setattr(log_blocks, "_SMALL_ROWS", 5)
    monkeypatch.setattr(log_partition, "PIECES_MAX", 3)


@pytest.mark.timeout(600)
def test_logs_and_model_agree() -> None:
    run_state_machine_as_test(LogMachine, settings=QUICK)


@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_logs_and_model_agree_for_long() -> None:
    run_state_machine_as_test(LogMachine, settings=THOROUGH)
