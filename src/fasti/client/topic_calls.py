"""What a client does with topics, and the ways from it into the rooms of a topic's kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from fasti.client.broker_calls import BrokerCalls
from fasti.client.consumers import ConsumerInfo
from fasti.client.kept import Kept
from fasti.client.topics import References, Topic, given_settings
from fasti.model import Limits

if TYPE_CHECKING:
    from fasti.client.arguments import Kind, TopicOptions, TopicSettingOptions
    from fasti.client.bindings import Bindings
    from fasti.client.definitions import Change
    from fasti.client.groups import Groups
    from fasti.client.kv import KeyValues
    from fasti.client.log import Log
    from fasti.client.schedules import Schedules
    from fasti.client.watch import Watch


class TopicCalls(BrokerCalls):
    """The part of `Client` that is about topics."""

    limits: Limits
    _watches: Kept[Watch]

    def create_topic(
        self, name: str, *, kind: Kind = "timeline", **settings: Unpack[TopicOptions]
    ) -> Topic:
        """Makes a topic. Again with the same settings: fine; with others: `topic_mismatch`.

            client.create_topic("emails", lease="30s", max_attempts=5, partitions=4,
                                retry=fasti.Backoff("1s", factor=2, limit="1h"))

        Settings are those of `fasti.model.TopicSettings`; lengths of time as `"30s"`, or in
        microseconds as `lease_us`.
        """
        wire = given_settings({"kind": kind, **settings})
        header, _ = self._call("create_topic", {"topic": name, "settings": wire})
        return Topic.of_reply(name, header)

    def change_topic(self, name: str, **settings: Unpack[TopicSettingOptions]) -> Topic:
        """Changes the settings that are given; `kind` and `partitions` can't be changed."""
        wire = given_settings({**settings})
        header, _ = self._call("change_topic", {"topic": name, "settings": wire})
        return Topic.of_reply(name, header)

    def delete_topic(self, name: str) -> None:
        """Removes a topic and all its messages. Raises `not_found`.

        Bindings that lead to it end; schedules that emit into it wait for a topic of its name.
        `references` tells before which they are.
        """
        self._call("delete_topic", {"topic": name})

    def pause_topic(self, name: str) -> bool:
        """Nothing more is handed out of the topic, for good, until `resume_topic`: was that new?

        All else goes on: messages come and can be changed, schedules emit into it, live leases can be
        finished and run out. Consumers stay connected and wait. Of a log, all groups are paused. Raises
        `not_found`, and `invalid_argument` where nothing is handed out (`kv`, `cron`).
        """
        return bool(self._call("pause_topic", {"topic": name})[0]["changed"])

    def resume_topic(self, name: str) -> bool:
        """What is due goes out again, in order: was that new? Raises as `pause_topic`."""
        return bool(self._call("resume_topic", {"topic": name})[0]["changed"])

    def topic(self, name: str) -> Topic:
        """A topic's settings and counts. Raises `not_found`."""
        header, _ = self._call("topic", {"topic": name})
        return Topic.of_reply(name, header)

    def topics(self) -> list[Topic]:
        """All topics, by name."""
        header, _ = self._call("topics")
        return [
            Topic.of_reply(topic["topic"], {"shard": header.get("shard"), **topic})
            for topic in header["topics"]
        ]

    def references(self, topic: str) -> References:
        """The schedules and bindings that point to a topic. Raises `not_found`."""
        return References.of_reply(self._call("references", {"topic": topic})[0])

    def definitions(self) -> dict[str, Any]:
        """All topics with their settings, bindings and schedules as plain values, to be kept."""
        from fasti.client import definitions

        return definitions.export(self)

    def define(
        self, document: dict[str, Any], *, prune: bool = False, dry_run: bool = False
    ) -> list[Change]:
        """Makes topics, bindings and schedules as `definitions` would write them: what it changed.

        What the document doesn't name is left alone (a change whose `action` is `keep`), unless
        `prune` says that it goes. With `dry_run` nothing is done. Raises `invalid_argument`,
        `topic_mismatch` and `not_found` on a document that can't be, before anything is done.
        """
        from fasti.client import definitions

        changes = definitions.difference(self, document, prune)
        if not dry_run:
            definitions.apply(self, changes)
        return changes

    def consumers(self, topic: str | None = None) -> list[ConsumerInfo]:
        """Who consumes, and who still has leases: of all topics or of one, at most 10,000.

        By topic, group and name. Raises `not_found`.
        """
        header, _ = self._call("consumers", {"topic": topic or ""})
        now_us = int(header["now_us"])
        return [ConsumerInfo.of_reply(row, now_us) for row in header["consumers"]]

    def release_consumer(
        self, name: str, topic: str | None = None, group: str | None = None
    ) -> int:
        """Takes back all that a consumer has leased: how many messages go to others now.

        For a worker that hangs: end it first, or it may get them again as soon as it speaks. The attempts don't count, and
        whatever it still does with them answers `stale_lease`. Without a topic, wherever it has any.
        """
        released = 0
        for consumer in self.consumers(topic):
            if consumer.consumer == name and consumer.leases and group in (None, consumer.group):
                released += self._release_all(consumer)
        return released

    def _release_all(self, consumer: ConsumerInfo) -> int:
        from fasti.client.outcomes import Outcomes

        header = {"topic": consumer.topic, "consumer": consumer.consumer, "group": consumer.group}
        released, left = 0, consumer.leases
        while left > 0:
            reply, _ = self._call("release_leases", header)
            outcomes = Outcomes.of_reply(reply)
            if not len(outcomes):
                break
            released += int((outcomes.codes == 0).sum())
            left -= len(outcomes)
        return released

    def log(self, topic: str) -> Log:
        """A log as a whole: where its partitions begin and end, truncation."""
        from fasti.client.log import Log

        self._check_open()
        return Log(self.transport, topic)

    def groups(self, topic: str) -> Groups:
        """The consumer groups of a log: their offsets and lag, making, resetting and deleting."""
        from fasti.client.groups import Groups

        self._check_open()
        return Groups(self.transport, topic)

    def kv(self, topic: str) -> KeyValues:
        """The entries of a key-value topic: put, get, delete, scan, watch."""
        from fasti.client.kv import KeyValues

        self._check_open()
        return KeyValues(self.transport, topic, self.limits, self._watches)

    def bindings(self, topic: str) -> Bindings:
        """The topics that get what this topic gets, by the messages' subjects: add, remove, list."""
        from fasti.client.bindings import Bindings

        self._check_open()
        return Bindings(self.transport, topic)

    def schedules(self, topic: str) -> Schedules:
        """The schedules of a cron topic: put, list, preview, pause, resume, run now, delete."""
        from fasti.client.schedules import Schedules

        self._check_open()
        return Schedules(self.transport, topic)
