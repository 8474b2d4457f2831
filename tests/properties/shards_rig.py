"""Several shards beside one naive model: commands are split by layout, answers are joined, and together
they must answer as one broker does.

Each shard is a `LocalShard` on memory: killed, it comes back from its journal and its checkpoints. Topics
are made on shard 0 and told to the others page by page, with kills in between.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.catalogue.commands import (
    CataloguePage,
    FollowCatalogue,
    ReadCatalogue,
    ReadCatalogueVersion,
)
from fasti.core.engine import Engine
from fasti.core.keys import Keys
from fasti.core.layout import Layout, ShardPlace
from fasti.core.replies import ConsumerReplaced, Deliver, Reply, Step, blank
from fasti.core.timeline.reads import STATE_WORDS
from fasti.errors import FastiError, WrongShard
from fasti.model import MINUTE_US, Outcome, State, partition_of
from fasti.storage.local_shard import LocalShard
from fasti.storage.memory_storage import MemoryStorage
from tests.models.state import Answer
from tests.models.timeline import Model
from tests.properties.engine_rig import Op, compare, to_command

BEGIN_US = 1_000_000_000_000_000
_SETTINGS = ShardSettings(memory_bytes=64 << 20, leases_max=256)


class ShardsRig:
    """Shards, the model, and the time of both."""

    def __init__(self, count: int, draws: random.Random) -> None:
        self.count, self._draws = count, draws
        self.now_us, self.tick = BEGIN_US, 5_000_000
        self._storages = [MemoryStorage() for _ in range(count)]
        self.shards = [self.opened(number) for number in range(count)]
        self.model = Model()
        self.model.begin_step(self.now_us, self.tick)
        # Of each shard the session that waits there; its consumer has the shard's number in its name.
        self.last_session = 0
        self._sessions: dict[int, int] = {}
        self._turn = 0
        self.keys_used: set[str] = set()
        self.ids_used: dict[str, list[int]] = {}
        self.tokens: dict[tuple[str, int], int] = {}

    def opened(self, number: int) -> LocalShard:
        """A shard from what its storage has."""
        place = ShardPlace(number, self.count)
        return LocalShard(self._storages[number], _SETTINGS, self.tick, place)

    def engine(self, number: int) -> Engine:
        """One shard's."""
        return self.shards[number].engine

    def layout(self, topic: str) -> Layout:
        """Where the partitions of a topic are; of one that there isn't, anywhere."""
        known = self.model.topics.get(topic)
        return Layout(self.count) if known is None else Layout.of(known.settings, self.count)

    # Steps

    def step(self, inputs: dict[int, list[Any]] | None = None) -> dict[int, Step]:
        """One step of every shard, with these inputs."""
        inputs = inputs or {}
        return {
            number: shard.step(inputs.get(number, []), self.now_us, self.tick)
            for number, shard in enumerate(self.shards)
        }

    def _take_effects(self, steps: dict[int, Step]) -> None:
        """What was handed out may be, on each shard; and then nothing more is to be done."""
        for _ in range(100):
            more = False
            for number, step in steps.items():
                for effect in step.effects:
                    self._take_effect(number, effect)
                more |= step.more
            if not more:
                return
            steps = self.step()
        raise AssertionError("a shard never comes to rest")

    def _take_effect(self, number: int, effect: Any) -> None:
        if not isinstance(effect, Deliver):
            assert not isinstance(effect, ConsumerReplaced)
            return
        ids = effect.ids.tolist()
        assert {self.layout(effect.topic).shard_of(partition_of(each)) for each in ids} == {number}
        partition = self.engine(number).state.by_name[effect.topic].partitions[partition_of(ids[0])]
        loaded_until_us = partition.times.loaded_until_us
        self.model.handed_out(effect.topic, effect.session, effect.token, ids, loaded_until_us)
        self.tokens |= {(effect.topic, each): effect.token for each in ids}

    def advance(self, by_us: int) -> None:
        """Time goes on everywhere."""
        self.now_us += by_us
        self.tick += by_us
        self.model.begin_step(self.now_us, self.tick)
        self._take_effects(self.step())

    def let_leases_end(self) -> None:
        """Nobody waits any more, and a minute passes."""
        for number, session in self._sessions.items():
            self.shards[number].call(co.Detach(session), self.now_us, self.tick)
            self.model.detach(session)
        self._sessions.clear()
        self.advance(2 * MINUTE_US)

    # Kills

    def kill(self, number: int) -> None:
        """A shard's process dies and comes back."""
        self.shards[number].close()
        self.shards[number] = self.opened(number)
        session = self._sessions.pop(number, 0)
        self.model.detach(session)
        last_at_us = self.engine(number).state.last_at_us
        for name, topic in self.model.topics.items():
            shard_of = self.layout(name).shard_of
            for message in topic.messages.values():
                if message.state == State.LEASED and shard_of(partition_of(message.id)) == number:
                    message.sign = ""
                    start = self.tick + max(0, message.due_us - last_at_us)
                    message.until_tick = start + message.length_us
                    message.hold_tick = start + topic.settings.hold_us
        self._take_effects(self.step())

    def checkpoint(self, number: int) -> None:
        """A shard writes one."""
        self.shards[number].checkpoint(self.now_us, self.tick)

    def _maybe_kill(self, number: int) -> None:
        if self._draws.random() < 0.2:
            self.shards[number].close()
            self.shards[number] = self.opened(number)

    # The catalogue

    def change_catalogue(self, op: Op) -> None:
        """On shard 0, and then on all the others, with kills at any step."""
        # Sessions end, so that a kill in the middle takes nothing away that the model has.
        self.let_leases_end()
        name, given = op
        steps = {0: self.shards[0].step([to_command(op)], self.now_us, self.tick)}
        (reply,) = steps[0].replies
        _, refused = self._run_model(name, given)
        assert (reply.error and reply.error.code) == refused
        self._maybe_kill(0)
        for number in range(1, self.count):
            self.follow(number)
        self._take_effects(self.step())
        if name == "delete_topic":
            self.ids_used.pop(given["name"], None)
        self.check_topics()

    def follow(self, number: int) -> None:
        """A shard is told until it has everything."""
        more = True
        while more:
            self._maybe_kill(number)
            after = self._query(number, ReadCatalogueVersion())
            page = self._query(0, ReadCatalogue(after))
            for _ in range(self._draws.choice([1, 1, 2])):
                assert self._query(number, FollowCatalogue(page)) == page.version
            more = page.more

    def run_catalogue_behind(self, draw: Callable[[], Op], changes: int) -> None:
        """Changes on shard 0 which the others come to know at any time; in the end all know them."""
        old: list[tuple[int, CataloguePage]] = []
        for _ in range(changes):
            self.now_us += 1000
            self.model.begin_step(self.now_us, self.tick)
            name, given = draw()
            reply = self.shards[0].call(to_command((name, given)), self.now_us, self.tick)
            _, refused = self._run_model(name, given)
            assert (reply.error and reply.error.code) == refused
            number = self._draws.randrange(self.count)
            what = self._draws.random()
            if what < 0.2:
                self._maybe_kill(number)
            elif what < 0.3:
                self.checkpoint(number)
            elif number and what < 0.5:
                # One page, or none: the shard may be away before the next one comes.
                page = self._query(0, ReadCatalogue(self._query(number, ReadCatalogueVersion())))
                old.append((number, page))
                if self._draws.random() < 0.7:
                    assert self._query(number, FollowCatalogue(page)) == page.version
            elif old and what < 0.7:
                late, page = self._draws.choice(old)
                before = self._query(late, ReadCatalogueVersion())
                after = self._query(late, FollowCatalogue(page))
                assert after == (page.version if page.after == before else before)
        for number in range(1, self.count):
            self.follow(number)
        self.check_topics()
        version = self._query(0, ReadCatalogueVersion())
        for number in range(self.count):
            assert self._query(number, ReadCatalogueVersion()) == version
            self._maybe_kill(number)
        self.check_topics()

    def _query(self, number: int, query: Any) -> Any:
        reply = self.shards[number].call(query, self.now_us, self.tick)
        assert reply.error is None, reply.error
        return reply.value

    def check_topics(self) -> None:
        """All shards know the same ones."""
        for number in range(self.count):
            known = self.engine(number).state.by_name
            assert set(known) == set(self.model.topics)
            for name, topic in self.model.topics.items():
                assert known[name].settings == topic.settings
                assert known[name].paused == topic.paused
                own = self.layout(name).own(number).tolist()
                assert set(known[name].partitions.numbers()) <= set(own)

    # Commands on messages

    def run(self, op: Op) -> None:
        """A command, split by rows; the answers joined are those of the model."""
        name, given = op
        places = self._places(op)
        inputs: dict[int, list[Any]] = {}
        for number, rows in places.items():
            inputs[number] = [self._command(number, (name, _only(given, rows)))]
        steps = self.step(inputs)
        replies = {number: steps[number].replies[0] for number in places}
        given = dict(given)
        refused = {reply.error.code for reply in replies.values() if reply.error is not None}
        reply = None
        if not refused:
            reply = _joined(replies, places)
            if name == "produce":
                given["partition"] = self._chosen(given, reply)
        expected, error = self._run_model(name, given)
        assert refused == ({error} if error else set())
        if reply is not None:
            if given.get("ids") is None and name != "produce":
                expected = _without_ended(reply, expected)
            compare(reply, expected)
            if name == "produce":
                made = [answer.id for answer in expected if answer.status == Outcome.OK]
                self.ids_used.setdefault(given["topic"], []).extend(made)
                self.keys_used.update(key for key in given["keys"] if key is not None)
        self._take_effects(steps)

    def _run_model(self, name: str, given: dict[str, Any]) -> tuple[Any, str | None]:
        """What the model answers, or the code that it refuses with."""
        try:
            return getattr(self.model, name)(**given), None
        except FastiError as error:
            return None, error.code

    def _command(self, number: int, op: Op) -> Any:
        """For a shard, under whose seed keys are hashed again when its journal is replayed."""
        command, seed = to_command(op), self.shards[number].store.seed
        for holder in (command, getattr(command, "target", None)):
            if getattr(holder, "keys", None) is not None:
                holder.keys = Keys(holder.keys.values, seed)
        return command

    def _places(self, op: Op) -> dict[int, list[int]]:
        """The rows that go to each shard; those without a key to one whose turn it is."""
        name, given = op
        layout = self.layout(given["topic"])
        if name == "produce" or given.get("ids") is None:
            keys = given["keys"]
            shards = layout.shards_of_keys(pa.array(keys, pa.string())).tolist()
            self._turn += 1
            free = layout.all_shards[self._turn % len(layout.all_shards)]
            shards = [free if key is None else its for key, its in zip(keys, shards, strict=True)]
        else:
            shards = layout.shards_of_ids(np.array(given["ids"], dtype=np.int64)).tolist()
        return {
            shard: [row for row, its in enumerate(shards) if its == shard]
            for shard in sorted(set(shards))
        }

    def _chosen(self, given: dict[str, Any], reply: Reply) -> int:
        keys = given["keys"]
        return partition_of(int(reply.ids[keys.index(None)])) if None in keys else 0

    def misroute(self, op: Op) -> None:
        """The same command whole on a shard that hasn't all of its rows: refused, nothing happens."""
        places = self._places(op)
        foreign = [n for n in range(self.count) if set(places) != {n}]
        if op[1]["topic"] not in self.model.topics or not foreign:
            return
        number = self._draws.choice(foreign)
        keys = op[1].get("keys") or []
        if None in keys and self.layout(op[1]["topic"]).own(number).size:
            return
        step = self.shards[number].step([self._command(number, op)], self.now_us, self.tick)
        assert isinstance(step.replies[0].error, WrongShard)
        assert not step.frames
        self._take_effects({number: step})

    def lease(self, topic: str, number: int, count: int) -> None:
        """A consumer waits on one of the shards."""
        session = self._sessions.get(number)
        if session is None:
            self.last_session += 1
            session = self._sessions[number] = self.last_session
        given = {"topic": topic, "session": session, "consumer": f"c{number}", "count": count}
        steps = self.step({number: [to_command(("lease", given))]})
        (reply,) = steps[number].replies
        resumed, error = self._run_model("lease", given)
        assert (reply.error and reply.error.code) == error
        wanted = {message.id for message in resumed or ()}
        for effect in list(steps[number].effects):
            if wanted and isinstance(effect, Deliver):
                ids = set(effect.ids.tolist())
                if ids <= wanted:
                    self.model.resumed(topic, effect.token, list(ids))
                    self.tokens |= {(topic, each): effect.token for each in ids}
                    wanted -= ids
                    steps[number].effects.remove(effect)
        assert not wanted
        self._take_effects(steps)

    # What there is

    def check(self) -> None:
        """All shards together have the model's messages, each where its partition is."""
        for name, topic in self.model.topics.items():
            counts: dict[str, int] = {}
            found: dict[int, tuple[Any, ...]] = {}
            for number, shard in enumerate(self.shards):
                reply = shard.call(co.Count(name), self.now_us, self.tick)
                counts = {word: counts.get(word, 0) + n for word, n in reply.states.items()}
                found |= self._listed(name, number)
            assert counts == self.model.count(name)
            wanted = {
                message.id: (
                    message.due_us,
                    message.version,
                    message.attempts,
                    message.visible_state(self.now_us),
                    message.payload,
                )
                for message in topic.messages.values()
            }
            assert found == wanted

    def _listed(self, topic: str, number: int) -> dict[int, tuple[Any, ...]]:
        shard, layout = self.shards[number], self.layout(topic)
        found: dict[int, tuple[Any, ...]] = {}
        after, more = 0, True
        while more:
            page = shard.call(co.List(topic, after, limit=7), self.now_us, self.tick)
            for row, message_id in enumerate(page.ids.tolist()):
                assert layout.shard_of(partition_of(message_id)) == number
                at = np.array([page.columns["location"][row]])
                payload = shard.store.payloads.gather(at).column("payload")[0].as_py()
                found[message_id] = (
                    int(page.columns["due_us"][row]),
                    int(page.columns["version"][row]),
                    int(page.columns["attempts"][row]),
                    STATE_WORDS[int(page.columns["state"][row])],
                    payload,
                )
            after, more = page.next_after_id, page.next_after_id > 0
        return found

    def close(self) -> None:
        """The end."""
        for shard in self.shards:
            shard.close()


def _only(given: dict[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """Of what a command says of each of its rows, some rows."""
    columns = ("payloads", "keys", "ids", "tokens", "versions")
    found = dict(given)
    for name in columns:
        if isinstance(found.get(name), list):
            found[name] = [found[name][row] for row in rows]
    if found.get("when") is not None and isinstance(found["when"][1], list):
        kind, values = found["when"]
        found["when"] = (kind, [values[row] for row in rows])
    return found


def _joined(replies: dict[int, Reply], places: dict[int, list[int]]) -> Reply:
    whole = blank(sum(map(len, places.values())))
    whole.at_us, whole.by = np.zeros(len(whole.status), dtype=np.int64), {}
    for number, rows in places.items():
        reply = replies[number]
        for name in ("status", "ids", "versions"):
            getattr(whole, name)[rows] = getattr(reply, name)
        if reply.at_us is not None:
            whole.at_us[rows] = reply.at_us
        whole.by |= {rows[row]: by for row, by in (reply.by or {}).items()}
    return whole


def _without_ended(reply: Reply, expected: list[Answer]) -> list[Answer]:
    """A checkpoint keeps no keys of messages that have ended: to a shard that began with one they name
    nothing any more, as they do after a while to any other.
    """
    ended = (Outcome.CANCELLED, Outcome.DONE, Outcome.DEAD, Outcome.GONE)
    return [
        Answer(Outcome.NOT_FOUND)
        if answer.status in ended and status == Outcome.NOT_FOUND
        else answer
        for answer, status in zip(expected, reply.status.tolist(), strict=True)
    ]
