"""A real process with a whole shard, killed again and again over one directory.

The machine stays up, so nothing that was written is lost: this is a test of the threads, files and
maps of a real operating system. tests/crash/test_shard_crash.py loses more, but has no threads.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fasti.config import Durability
from fasti.core import commands as co
from fasti.model import State
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import LocalFiles
from fasti.storage.local_shard import LocalShard
from tests.crash.shard_worker import SETTINGS

WORKER = Path(__file__).with_name("shard_worker.py")


class Believed:
    """What must be true, as far as the processes lived to tell."""

    def __init__(self) -> None:
        # By id: name, due time, size of the payload and key; None where something is not known.
        self.living: dict[int, dict[str, Any]] = {}
        self.finished: set[int] = set()
        # Under which name each was first delivered.
        self.names: dict[int, str] = {}
        self.tokens: dict[int, int] = {}
        self.tried_names: set[str] = set()
        self.tried: dict[int, dict[str, Any]] = {}

    def hear(self, fact: dict[str, Any]) -> None:
        """One line of a report."""
        what, kind = fact["what"], fact["kind"]
        if what == "produce":
            self._produced(fact)
        elif what == "deliver":
            self._delivered(fact)
        elif kind == "try":
            self.tried[fact["id"]] = fact
        else:
            self.tried.pop(fact["id"], None)
            if kind == "ok":
                self._changed(what, fact)

    def _produced(self, fact: dict[str, Any]) -> None:
        if fact["kind"] == "try":
            self.tried_names.update(fact["names"])
            return
        columns = zip(
            fact["ids"], fact["names"], fact["due"], fact["keys"], fact["sizes"], strict=True
        )
        for message, name, due, key, size in columns:
            self.tried_names.discard(name)
            # It may have been delivered, and finished too, before its producer was told.
            if message in self.finished:
                assert self.names.get(message) == name
                continue
            known = self.living.setdefault(message, {"name": name, "due": due})
            known |= {"key": key, "size": size}

    def _delivered(self, fact: dict[str, Any]) -> None:
        for message, due, name in zip(fact["ids"], fact["due"], fact["names"], strict=True):
            assert due <= fact["now"], "delivered before it was due"
            assert message not in self.finished, "delivered though it was finished"
            assert fact["token"] > self.tokens.get(message, 0), "a second lease"
            self.tokens[message] = fact["token"]
            self.names.setdefault(message, name)
            known = self.living.setdefault(message, {"name": name, "due": due})
            assert known["name"] == name
            assert known["due"] in (due, None)

    def _changed(self, what: str, fact: dict[str, Any]) -> None:
        message = fact["id"]
        assert message not in self.finished
        if what in ("ack", "cancel"):
            self.finished.add(message)
            self.living.pop(message, None)
        elif what in ("release", "nack"):
            self.living[message]["due"] = None
        elif message in self.living:
            changed = (
                {"name": fact["name"], "size": None} if what == "update" else {"due": fact["due"]}
            )
            self.living[message] |= changed

    def check(self, seen: dict[int, dict[str, Any]]) -> None:
        """Compares with what a directory holds, and takes from there what was left open."""
        for message, fact in self.tried.items():
            known = self.living.get(message)
            if known is None:
                continue
            if message not in seen:
                assert fact["what"] in ("ack", "cancel"), "lost"
                self.finished.add(message)
                del self.living[message]
            elif fact["what"] == "update" and seen[message]["name"] == fact["name"]:
                known |= {"name": fact["name"], "size": None}
            elif fact["what"] in ("move", "release", "nack"):
                known["due"] = None
        self.tried.clear()
        assert not seen.keys() & self.finished, "back again"
        assert self.living.keys() <= seen.keys(), "lost"
        for message, found in seen.items():
            known = self.living.get(message)
            if known is None:
                assert found["name"] in self.tried_names, "from nowhere"
            else:
                for name, value in known.items():
                    assert value is None or found[name] == value, (message, name)
            self.living[message] = dict(found)
        self.tried_names.clear()


def run_until_killed(
    directory: Path, seed: int, lines: int, believed: Believed, durability: Durability
) -> None:
    """Starts a worker, kills it after so many lines, and believes what it had told."""
    command = [sys.executable, str(WORKER), str(directory), str(seed), durability]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        for _ in range(lines):
            line = worker.stdout.readline()
            assert line, "the worker died by itself"
            believed.hear(json.loads(line))
        worker.kill()
        for line in worker.stdout.read().splitlines(keepends=True):
            if line.endswith(b"\n"):
                believed.hear(json.loads(line))


def look(directory: Path) -> dict[int, dict[str, Any]]:
    """Every message of a directory; counts and leases must agree with the list."""
    shard = LocalShard(FileStorage(LocalFiles(directory)), SETTINGS)
    try:
        now_us = shard.engine.state.last_at_us
        page = shard.call(co.List("t", limit=65_536), now_us, 0)
        assert not page.next_after_id
        if not page.columns:
            return {}
        contents = shard.store.payloads.gather(page.columns["location"])
        counts = shard.call(co.Count("t"), now_us, 0).states
        listed = counts["scheduled"] + counts["ready"] + counts["leased"] + counts["dead"]
        assert len(page.ids) == listed
        leases = shard.engine.memory.leases.columns()["sequence"].tolist()
        leased = page.ids[page.columns["state"] == State.LEASED].tolist()
        assert sorted(leases) == sorted(leased)
        columns = [page.ids, page.columns["due_us"]]
        rows = zip(
            *(column.tolist() for column in columns),
            contents.column("payload").to_pylist(),
            contents.column("key").to_pylist(),
            strict=True,
        )
        return {
            message: {
                "name": payload.rstrip(b".").decode(),
                "due": due,
                "size": len(payload),
                "key": key,
            }
            for message, due, payload, key in rows
        }
    finally:
        shard.close()


def kill_again_and_again(
    directory: Path, rounds: int, seed: int, durability: Durability = Durability.ALWAYS
) -> None:
    rng = random.Random(seed)
    believed = Believed()
    for number in range(1, rounds + 1):
        lines = rng.choice([1, 20, 200, 600, 1500]) + rng.randrange(50)
        run_until_killed(directory, number, lines, believed, durability)
        believed.check(look(directory))
    assert len(believed.finished) > 20
    assert len(believed.living) > 20


def test_a_shard_that_is_killed_at_random_moments(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, rounds=6, seed=1)


def test_a_process_that_syncs_at_intervals_loses_nothing_either(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, rounds=4, seed=2, durability=Durability.INTERVAL)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_shard_that_is_killed_very_often(tmp_path: Path, seed: int) -> None:
    kill_again_and_again(tmp_path, rounds=100, seed=seed)
