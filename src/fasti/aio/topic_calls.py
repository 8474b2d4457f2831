"""Written by `make aio` from `fasti/client/topic_calls.py`: change that file instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fasti.aio.bindings import Bindings
from fasti.aio.broker_calls import BrokerCalls
from fasti.aio.groups import Groups
from fasti.aio.kv import KeyValues
from fasti.aio.log import Log
from fasti.aio.schedules import Schedules

if TYPE_CHECKING:
    from typing import Any, Unpack

    from fasti.aio.home import Home
    from fasti.client.arguments import Kind, TopicOptions, TopicSettingOptions
    from fasti.client.consumers import ConsumerInfo
    from fasti.client.definitions import Change
    from fasti.client.topic_calls import TopicCalls as SyncTopicCalls
    from fasti.client.topics import References, Topic


class TopicCalls(BrokerCalls):
    """The part of `Client` that is about topics. As `fasti.Client`, with `await`."""

    _home: Home
    _client: SyncTopicCalls

    async def create_topic(
        self, name: str, *, kind: Kind = "timeline", **settings: Unpack[TopicOptions]
    ) -> Topic:
        """Makes a topic. Again with the same settings: fine; with others: `topic_mismatch`.

        As `fasti.Client.create_topic`.
        """
        return await self._home.run(self._client.create_topic, name, kind=kind, **settings)

    async def change_topic(self, name: str, **settings: Unpack[TopicSettingOptions]) -> Topic:
        """Changes the settings that are given; `kind` and `partitions` can't be changed."""
        return await self._home.run(self._client.change_topic, name, **settings)

    async def delete_topic(self, name: str) -> None:
        """Removes a topic and all its messages. Raises `not_found`.

        As `fasti.Client.delete_topic`.
        """
        await self._home.run(self._client.delete_topic, name)

    async def pause_topic(self, name: str) -> bool:
        """Nothing more is handed out of the topic, for good, until `resume_topic`: was that new?

        As `fasti.Client.pause_topic`.
        """
        return await self._home.run(self._client.pause_topic, name)

    async def resume_topic(self, name: str) -> bool:
        """What is due goes out again, in order: was that new? Raises as `pause_topic`."""
        return await self._home.run(self._client.resume_topic, name)

    async def topic(self, name: str) -> Topic:
        """A topic's settings and counts. Raises `not_found`."""
        return await self._home.run(self._client.topic, name)

    async def topics(self) -> list[Topic]:
        """All topics, by name."""
        return await self._home.run(self._client.topics)

    async def references(self, topic: str) -> References:
        """The schedules and bindings that point to a topic. Raises `not_found`."""
        return await self._home.run(self._client.references, topic)

    async def definitions(self) -> dict[str, Any]:
        """All topics with their settings, bindings and schedules as plain values, to be kept."""
        return await self._home.run(self._client.definitions)

    async def define(
        self, document: dict[str, Any], *, prune: bool = False, dry_run: bool = False
    ) -> list[Change]:
        """Makes topics, bindings and schedules as `definitions` would write them: what it changed.

        As `fasti.Client.define`.
        """
        return await self._home.run(self._client.define, document, prune=prune, dry_run=dry_run)

    async def consumers(self, topic: str | None = None) -> list[ConsumerInfo]:
        """Who consumes, and who still has leases: of all topics or of one, at most 10,000.

        As `fasti.Client.consumers`.
        """
        return await self._home.run(self._client.consumers, topic)

    async def release_consumer(
        self, name: str, topic: str | None = None, group: str | None = None
    ) -> int:
        """Takes back all that a consumer has leased: how many messages go to others now.

        As `fasti.Client.release_consumer`.
        """
        return await self._home.run(self._client.release_consumer, name, topic, group)

    def log(self, topic: str) -> Log:
        """A log as a whole: where its partitions begin and end, truncation."""
        return Log(self._home, self._client.log(topic))

    def groups(self, topic: str) -> Groups:
        """The consumer groups of a log: their offsets and lag, making, resetting and deleting."""
        return Groups(self._home, self._client.groups(topic))

    def kv(self, topic: str) -> KeyValues:
        """The entries of a key-value topic: put, get, delete, scan, watch."""
        return KeyValues(self._home, self._client.kv(topic))

    def bindings(self, topic: str) -> Bindings:
        """The topics that get what this topic gets, by the messages' subjects: add, remove, list."""
        return Bindings(self._home, self._client.bindings(topic))

    def schedules(self, topic: str) -> Schedules:
        """The schedules of a cron topic: put, list, preview, pause, resume, run now, delete."""
        return Schedules(self._home, self._client.schedules(topic))
