"""Two to four shards together answer as one broker, whatever is asked of them and whichever is killed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fasti.core.catalogue import book, deciding
from fasti.model import MINUTE_US, SECOND_US, OnConflict, TopicSettings, make_id
from tests.properties.engine_rig import Op
from tests.properties.shards_rig import ShardsRig
from tests.seeds import seeds

TOPICS = ["a", "b", "c"]
KEYS = [f"k{n}" for n in range(12)]


class Draws:
    """What is asked next."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = self.random.choice([2, 3, 4])
        self.rig = ShardsRig(self.count, self.random)
        self._serial = 0

    def settings(self) -> TopicSettings:
        draw = self.random
        return TopicSettings(
            partitions=draw.choice([1, self.count, self.count * 2, 5]),
            home=draw.choice(["", "", "there"]),
            width=draw.choice([0, 0, 1, 2]),
            lease_us=MINUTE_US,
            lookahead_us=0,
            max_attempts=3,
        )

    def topic(self) -> str:
        return self.random.choice(TOPICS)

    def _dues(self, count: int) -> Any:
        offsets = [0, 0, 1000, SECOND_US, 10 * SECOND_US, 5 * MINUTE_US]
        return ("delay", [self.random.choice(offsets) for _ in range(count)])

    def produce(self) -> Op:
        count = self.random.choice([1, 1, 2, 5, 9])
        keys = [self.random.choice([None, *KEYS]) for _ in range(count)]
        payloads = []
        for _ in range(count):
            self._serial += 1
            payloads.append(b"%d" % self._serial)
        conflict = self.random.choice([OnConflict.REJECT, OnConflict.REPLACE, OnConflict.KEEP])
        return "produce", {
            "topic": self.topic(),
            "payloads": payloads,
            "keys": keys,
            "when": self._dues(count),
            "on_conflict": conflict,
        }

    def change(self) -> Op:
        """Of some messages, by id or by key."""
        name, topic = self.random.choice(["move", "cancel"]), self.topic()
        given: dict[str, Any] = {"topic": topic}
        count = self.random.choice([1, 2, 4])
        known = self.rig.ids_used.get(topic, [])
        if known and self.random.random() < 0.6:
            given["ids"] = [self.random.choice([*known, make_id(0, 77)]) for _ in range(count)]
        else:
            given["keys"] = [self.random.choice(KEYS) for _ in range(count)]
        if name == "move":
            given["when"] = self._dues(count)
        return name, given

    def finish(self) -> Op | None:
        """Something under a lease, with tokens that are good or stale."""
        held = [(topic, number) for topic, number in self.rig.tokens if topic in TOPICS]
        if not held:
            return None
        topic = self.random.choice(held)[0]
        ids = [number for its, number in held if its == topic]
        chosen = self.random.sample(ids, min(len(ids), self.random.choice([1, 2, 5])))
        tokens = [
            self.rig.tokens[topic, number] + self.random.choice([0, 0, 0, 1]) for number in chosen
        ]
        name = self.random.choice(["ack", "ack", "nack", "reject", "release"])
        return name, {"topic": topic, "ids": chosen, "tokens": tokens}

    def catalogue(self) -> Op:
        name, topic = (
            self.random.choice(["create", "create", "change", "pause", "delete"]),
            self.topic(),
        )
        if name == "pause":
            return "pause_topic", {"name": topic, "paused": self.random.random() < 0.5}
        if name == "delete":
            return "delete_topic", {"name": topic}
        known = self.rig.model.topics.get(topic)
        if known is None or self.random.random() < 0.1:
            return "create_topic", {"name": topic, "settings": self.settings()}
        changed = TopicSettings.from_dict(
            known.settings.to_dict() | {"max_attempts": self.random.choice([2, 3, 5])}
        )
        return f"{name}_topic", {"name": topic, "settings": changed}

    def once(self) -> None:
        """One thing happens."""
        rig, number = self.rig, self.random.randrange(self.count)
        what = self.random.random()
        if what < 0.3:
            rig.run(self.produce())
        elif what < 0.45:
            rig.run(self.change())
        elif what < 0.5:
            rig.misroute(self.random.choice([self.produce, self.change])())
        elif what < 0.65:
            rig.lease(self.topic(), number, self.random.choice([1, 3, 20]))
        elif what < 0.8:
            op = self.finish()
            if op is not None:
                rig.run(op)
        elif what < 0.86:
            rig.advance(self.random.choice([1, 1000, SECOND_US, 20 * SECOND_US]))
        elif what < 0.88:
            rig.let_leases_end()
        elif what < 0.92:
            rig.kill(number)
        elif what < 0.96:
            rig.checkpoint(number)
        else:
            rig.change_catalogue(self.catalogue())


@pytest.mark.parametrize("seed", seeds(8, range(100)))
def test_shards_together_answer_as_one(seed: int) -> None:
    draws = Draws(seed)
    for name in TOPICS:
        draws.rig.change_catalogue(("create_topic", {"name": name, "settings": draws.settings()}))
    for _ in range(120):
        draws.once()
        draws.rig.check()
    draws.rig.close()


@pytest.mark.parametrize("seed", seeds(8, range(100)))
def test_a_catalogue_is_followed_from_any_version(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes heap up while shards are away, die and come back; pages come twice and late."""
    monkeypatch.setattr(deciding, "PAGE_ENTRIES", 2)
    monkeypatch.setattr(book, "GONE_MAX", 3)
    draws = Draws(seed)
    draws.rig.run_catalogue_behind(draws.catalogue, 60)
    draws.rig.close()
