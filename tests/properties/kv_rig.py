"""A shard with key-value topics beside the naive model, fed with the same work.

The shard is a whole one, on files in memory: what is written is read back by restarts and moved by
checkpoints. Beside the answers and the entries, what a watcher would be told is applied to a
dict, which must stay what the shard holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fasti.broker.kv.changes import changes_batch
from fasti.broker.kv.requests import SEPARATOR, KvKeys
from fasti.broker.kv.rings import Moment, happened_to
from fasti.config import ShardSettings
from fasti.core.commands import Count, CreateTopic, Transaction, When
from fasti.core.keys import Rows
from fasti.core.kv.commands import KvDelete, KvDescribe, KvGet, KvPut, KvRows
from fasti.core.replies import Frame, Reply, Step
from fasti.model import DUE_MAX_US, SEQUENCE_BITS, Outcome, TopicSettings
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import Files
from fasti.storage.files.memory_files import MemoryFiles
from fasti.storage.local_shard import LocalShard
from tests.models.kv import Answer, KvModel

TOPIC = "entries"
SETTINGS = ShardSettings(segment_bytes=8192, memory_bytes=16 << 20, leases_max=64)
START_US = 1_700_000_000_000_000
# A command: a name, and its rows.
Op = tuple[str, list[Any]]


def int64s(values: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.int64)


class Watched(LocalShard):
    """Keeps every frame that it writes, for who watches."""

    def __init__(self, files: Files) -> None:
        self.frames: list[Frame] = []
        super().__init__(FileStorage(files), SETTINGS)

    def _step(self, inputs: Sequence[Any], now_us: int, tick: int) -> Step:
        step = super()._step(inputs, now_us, tick)
        self.frames += step.frames
        return step


class KvRig:
    """The two, side by side."""

    def __init__(self, partitions: int, keys: Sequence[str], files: Files | None = None) -> None:
        self.files = files or MemoryFiles()
        self.shard = Watched(self.files)
        self.model = KvModel()
        self.keys = list(keys)
        self.now_us = START_US
        # What a watcher has put together: key to (value, version).
        self.watched: dict[str, tuple[bytes, int]] = {}
        settings = TopicSettings(kind="kv", partitions=partitions)
        self.number = self.shard.call(CreateTopic(TOPIC, settings), self.now_us, 0).value

    # Commands

    def keys_of(self, keys: Sequence[str]) -> KvKeys:
        named = pa.array([key.split(SEPARATOR)[0] for key in keys], pa.string())
        return KvKeys(pa.array(keys, pa.string()), named, self.shard.store.seed)

    def command(self, op: Op) -> Any:
        name, rows = op
        if name == "put":
            keys = [row.key for row in rows]
            contents = Rows.of([row.value for row in rows], key=pa.array(keys, pa.string()))
            ends = [DUE_MAX_US if row.expires_us is None else row.expires_us for row in rows]
            versions = int64s([row.version for row in rows])
            expires = When(due_us=int64s(ends))
            return KvPut(TOPIC, contents, self.keys_of(keys), versions, expires)
        keys = [key for key, _ in rows]
        contents = Rows.of([b""] * len(keys), key=pa.array(keys, pa.string()))
        versions = int64s([version for _, version in rows])
        return KvDelete(TOPIC, contents, self.keys_of(keys), versions)

    def _expected(self, model: KvModel, op: Op, reply: Reply) -> list[Answer]:
        name, rows = op
        if name == "put":
            return model.put(rows, self.now_us, reply.versions.tolist())
        return model.delete(rows, self.now_us)

    # Steps

    def step(self, ops: Sequence[Op]) -> None:
        """Commands of one step, each by itself."""
        step = self._step([self.command(op) for op in ops])
        for op, reply in zip(ops, step.replies, strict=True):
            assert reply.error is None, reply.error
            compare(reply, self._expected(self.model, op, reply))
        self.check()

    def transaction(self, ops: Sequence[Op]) -> None:
        """The same as one: whole, or not at all."""
        step = self._step([Transaction([self.command(op) for op in ops])])
        reply = step.replies[0]
        assert reply.error is None, reply.error
        model, good = self.model.copied(), True
        for op, part in zip(ops, reply.replies, strict=False):
            assert good, "nothing is decided behind a row that failed"
            wanted = self._expected(model, op, part)
            good = all(answer.status == Outcome.OK for answer in wanted)
            if not reply.committed:
                for answer in wanted:
                    if answer.status == Outcome.OK:
                        answer.status = Outcome.ABORTED
            compare(part, wanted)
        assert reply.committed == good
        if good:
            self.model = model
        self.check()

    def wait(self, span_us: int) -> None:
        """Time passes; what has expired is removed."""
        self.now_us += span_us
        self._step([])
        for _ in range(100):
            if not self._describe()["expired"]:
                break
            self._step([])
        self.model.expire(self.now_us)
        self.check()
        assert self._describe()["expired"] == 0
        assert set(self.watched) == set(self.model.entries)

    def checkpoint(self) -> None:
        self.shard.checkpoint(self.now_us, 0)
        self.check()

    def restart(self) -> None:
        before = self._describe()
        self.shard.close()
        self.shard = Watched(self.files)
        self.check()
        assert self._describe()["changed"] >= before["changed"]

    def _step(self, commands: list[Any]) -> Step:
        step = self.shard.step(commands, self.now_us, 0)
        self._watch()
        return step

    def _call(self, command: Any) -> Any:
        return self._step([command]).replies[0]

    def _watch(self) -> None:
        frames, self.shard.frames = self.shard.frames, []
        for frame in frames:
            if frame.rows is None:
                continue
            happened = happened_to(self.number, frame.events, frame.rows)
            if not happened:
                continue
            for row in changes_batch([Moment(frame.sequence, happened)]).to_pylist():
                key = row["key"]
                if row["clustering"] is not None:
                    key += SEPARATOR + row["clustering"]
                if row["op"] == "put":
                    self.watched[key] = (row["value"], row["version"])
                else:
                    del self.watched[key]

    # What there is

    def _describe(self) -> dict[str, Any]:
        found: dict[str, Any] = self._call(KvDescribe(TOPIC)).value
        return found

    def seen(self) -> dict[str, tuple[bytes, int, int | None]]:
        """Every entry that a reader gets: value, version, expiry."""
        found = self._call(KvGet(TOPIC, self.keys_of(self.keys)))
        here = np.flatnonzero(found.status == Outcome.OK)
        contents = self.shard.store.payloads.gather(found.locations[here]).to_pylist()
        entries = {}
        for row, content in zip(here.tolist(), contents, strict=True):
            assert content["key"] == self.keys[row]
            ends = int(found.expires_us[row])
            expires_us = None if ends == DUE_MAX_US else ends
            entries[self.keys[row]] = (content["payload"], int(found.versions[row]), expires_us)
        self._check_ids(found, here)
        return entries

    def _check_ids(self, found: Any, here: Any) -> None:
        again = self._call(KvRows(TOPIC, found.ids[here]))
        assert (again.status == Outcome.OK).all()
        assert (again.versions == found.versions[here]).all()
        strangers = int64s([0, 1 << 40, 3 << SEQUENCE_BITS | 1, 77 << SEQUENCE_BITS | 1])
        other = self._call(KvRows(TOPIC, strangers))
        assert (other.status == Outcome.NOT_FOUND).all()

    def check(self) -> None:
        """Both hold the same."""
        expected = {
            key: (entry.value, entry.version, entry.expires_us)
            for key, entry in self.model.entries.items()
            if entry.is_live(self.now_us)
        }
        assert self.seen() == expected
        # Told before this very step removes more of what has expired.
        told = len(self.watched)
        described = self._describe()
        assert told == described["entries"] + described["expired"]
        assert described["entries"] == len(expected)
        mortal = sum(expires_us is not None for _, _, expires_us in expected.values())
        assert described["expiring"] - described["expired"] == mortal
        states = self._call(Count(TOPIC)).states
        assert states["scheduled"] == len(expected)
        for key, (value, version, _) in expected.items():
            assert self.watched[key] == (value, version)
        # What expired may not be removed yet, but nobody is told of more.
        assert set(self.watched) >= set(expected)


def compare(reply: Reply, expected: Sequence[Answer]) -> None:
    got = [(Outcome(int(s)), int(v)) for s, v in zip(reply.status, reply.versions, strict=True)]
    wanted = [
        (answer.status, 0 if answer.status == Outcome.NOT_FOUND else answer.version)
        for answer in expected
    ]
    assert got == wanted
