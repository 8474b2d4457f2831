"""The catalogue: what topics there are. Shard 0's journal is the truth, and the other shards follow.

A change is made on shard 0, durably, and then told to each other shard, page by page, until it answers
that it has the version; whoever made the change waits for all of them (`carry_out`). A shard that doesn't
answer is told again, after pauses that grow to a second, for as long as the process lives, and one that
was away begins by asking (`catch_up`). Pages are idempotent and numbered (core/catalogue/), so it is all
the same who tells them, how often, and where a process died in between: nothing stays half done.

Each shard that follows has a step of its own (`Follower`), so that one that is away holds up no other. A
shard that is asked for a topic that it doesn't know asks the catalogue before it says so. Topics that
delete themselves go when they are idle on every shard (`IdleTopics`).

Shards of this process are reached directly, those of others by `Peers` as the actions `follow_catalogue`,
`read_catalogue` and `idle_topics`, which no client may call. Any thread may call anything here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fasti.broker.caller import Caller
from fasti.broker.calls.requests import Action, Answer, Header, Parts
from fasti.broker.idle_topics import IdleTopics
from fasti.broker.peers import Peers
from fasti.broker.shard_map import moved
from fasti.broker.threads import Poller
from fasti.core.catalogue.commands import (
    CataloguePage,
    FollowCatalogue,
    IdleTopic,
    ReadCatalogue,
    ReadCatalogueVersion,
    ReadIdle,
)
from fasti.core.layout import OWN_TOPICS
from fasti.errors import FastiError, Moved, NotFound, TimedOut, Unavailable, WrongShard
from fasti.model import back_off

if TYPE_CHECKING:
    from fasti.broker.host import Host
    from fasti.broker.service import Service
    from fasti.core.command import Command

_log = logging.getLogger("fasti.broker.catalogue")

CATALOGUE_SHARD = 0
# So long a change waits until all shards have it; and a shard for an answer of another one.
SETTLE_S = 10.0
_ANSWER_S = 5.0
_PAUSE_S, _PAUSE_S_MAX = 0.02, 1.0
# So soon after it has asked a shard doesn't ask again: what was made since then says so itself.
_ASK_AGAIN_S = 0.1


class LocalShard:
    """A shard of this process."""

    def __init__(self, service: Service) -> None:
        self.service, self._shard = service, service.placement.catalogue

    def version(self) -> int:
        """Up to which version the shard has the catalogue."""
        return int(self._call(ReadCatalogueVersion()))

    def read(self, after: int) -> CataloguePage:
        """What has changed since; of shard 0. All of it is durable."""
        page: CataloguePage = self._call(ReadCatalogue(after))
        return page

    def follow(self, page: CataloguePage) -> int:
        """Carries a page out; the version that the shard has then."""
        service, state = self.service, self._shard.engine.state
        before = dict(state.by_name)
        version = int(self._call(FollowCatalogue(page)))
        after = self._shard.engine.state.by_name
        for name, topic in before.items():
            found = after.get(name)
            if found is None or found.number != topic.number:
                service.topic_gone(name)
        for entry in page.entries:
            if entry.bindings or service.routes.knows(entry.name):
                with suppress(FastiError):
                    service.routes.refresh(entry.name)
        return version

    def idle(self, after: int) -> list[IdleTopic]:
        """Topics of the catalogue that nobody uses there."""
        found: list[IdleTopic] = self._call(ReadIdle(after))
        return found

    def _call(self, command: Command) -> Any:
        try:
            reply = self._shard.call(command, _ANSWER_S)
        except TimeoutError as error:
            raise TimedOut(f"shard {self._shard.name} doesn't answer") from error
        if reply.error is not None:
            raise reply.error
        return reply.value


class RemoteShard:
    """A shard of another process of this broker."""

    def __init__(self, number: int, peers: Callable[[], Peers | None]) -> None:
        self._number, self._peers = number, peers

    def version(self) -> int:
        return int(self._call("follow_catalogue")["version"])

    def read(self, after: int) -> CataloguePage:
        return CataloguePage.from_dict(self._call("read_catalogue", after=after)["page"])

    def follow(self, page: CataloguePage) -> int:
        return int(self._call("follow_catalogue", page=page.to_dict())["version"])

    def idle(self, after: int) -> list[IdleTopic]:
        return [IdleTopic(*topic) for topic in self._call("idle_topics", after=after)["topics"]]

    def _call(self, action: str, **header: Any) -> dict[str, Any]:
        peers = self._peers()
        if peers is None:
            raise Unavailable(
                f"shard {self._number} is in another process, and there is no way to it",
                details={"shard": self._number},
            )
        return peers.call(self._number, action, header, _ANSWER_S)


# To a shard, wherever it is.
Way = LocalShard | RemoteShard


class Follower:
    """One shard that follows: told what is new, again and again until it has it."""

    def __init__(
        self, number: int, way: Callable[[int], Way], catalogue: Catalogue, source: LocalShard
    ) -> None:
        """`way` tells where a shard is now."""
        self.number, self._way = number, way
        self._catalogue, self._source = catalogue, source
        # What it is known to have; None: not asked yet.
        self.version: int | None = None
        self.error: FastiError | None = None
        self._failures = 0
        threads = catalogue.threads
        self.poller = Poller(threads, f"fasti-catalogue-{number}", self._poll)

    def _poll(self) -> float | None:
        try:
            self._tell()
        except FastiError as error:
            return self._retry(error)
        self._failures, self.error = 0, None
        return None

    def _tell(self) -> None:
        has, shard = self.version, self._way(self.number)
        if has is None:
            has = shard.version()
        while not self.poller.stopping:
            self.poller.progress += 1
            page = self._source.read(has)
            if page.version == page.after and page.live is None:
                break
            told = shard.follow(page)
            if told == has:
                raise Unavailable(f"shard {self.number} does not follow from version {has}")
            # Another one than the page's: it is told from there on.
            has = told
        self.version = has
        self._catalogue.note_progress()

    def _retry(self, error: FastiError) -> float:
        # A shard that was opened again may have another version than it had.
        self.version = None
        if self._failures == 0:
            _log.info("shard %d does not follow the catalogue yet: %s", self.number, error)
        pause_s = back_off(_PAUSE_S, self._failures, _PAUSE_S_MAX)
        self._failures, self.error = self._failures + 1, error
        self._catalogue.note_progress()
        return pause_s


class Catalogue:
    """Of one process, whether or not it has shard 0."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.threads = host.threads
        self._monotonic = self.threads.runtime.monotonic
        self._changed = self.threads.runtime.condition()
        self._stopping = False
        # How many calls that change it are under way.
        self._changes = 0
        self._asked_at: dict[int, float] = {}
        self._asking = {number: threading.Lock() for number in range(host.shards)}
        # Replaced as a whole, as are the followers.
        self._local = {n: LocalShard(service) for n, service in host.services.items()}
        self.followers: list[Follower] = []
        self._idle: IdleTopics | None = None

    def _way_to(self, number: int) -> Way:
        return self._local.get(number) or RemoteShard(number, lambda: self._host.peers)

    def start(self) -> None:
        """Begins to tell the others; returns when the shards of this process have what shard 0 has.

        One that can't be told now is told later.
        """
        source = self._local.get(CATALOGUE_SHARD)
        if source is not None:
            self._lead(source)
            with suppress(FastiError):
                self._wait(source.version(), [f for f in self.followers if f.number in self._local])

    def stop(self) -> None:
        """Tells nobody any more; those who wait for it are told so."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._yield()

    def _lead(self, source: LocalShard) -> None:
        """Shard 0 is here: the others are told by this process."""
        numbers, way_to = range(self._host.shards), self._way_to
        others = [number for number in numbers if number != CATALOGUE_SHARD]
        self._idle = IdleTopics(source.service, lambda: list(map(way_to, numbers)), self._tell_all)
        self._idle.start()
        self.followers = [Follower(number, way_to, self, source) for number in others]
        for follower in self.followers:
            follower.poller.start()

    def _yield(self) -> None:
        """Shard 0 is here no longer, or the process ends."""
        idle, self._idle = self._idle, None
        followers, self.followers = self.followers, []
        if idle is not None:
            idle.stop()
        for follower in followers:
            follower.poller.stop()

    # Shards that come and leave: one at a time

    def add(self, number: int, service: Service) -> None:
        """A shard has come to this process, and is served."""
        self._local = {**self._local, number: LocalShard(service)}
        if number == CATALOGUE_SHARD:
            self._lead(self._local[number])
        else:
            self._tell_all()

    def let_finish(self, number: int, within_s: float) -> None:
        """Of shard 0: returns when the calls under way that change the catalogue are answered, or so late."""
        if number == CATALOGUE_SHARD:
            with self._changed:
                self._changed.wait_for(lambda: not self._changes, within_s)

    def remove(self, number: int) -> None:
        """A shard has left."""
        self._local = {n: shard for n, shard in self._local.items() if n != number}
        if number == CATALOGUE_SHARD:
            self._yield()
            # Who waits for followers is told that they did not follow in time.
            self.note_progress()

    # Changes

    def carry_out(
        self, action: Action, service: Service, caller: Caller, header: Header, parts: Parts
    ) -> Answer:
        """An action that changes the catalogue: answered when it holds on every shard.

        Raises `unavailable`, which names the shards, if some don't have it in time: it is done on shard 0,
        they will follow, and the same call again waits for them.
        """
        if service.placement.catalogue.place.number != CATALOGUE_SHARD:
            if header.get("topic") in OWN_TOPICS:
                return action(service, caller, header, parts)
            raise WrongShard(
                "topics are made, changed and deleted on shard 0",
                details={"topic": header.get("topic"), "shard": CATALOGUE_SHARD},
            )
        with self._changed:
            self._changes += 1
        try:
            answer = action(service, caller, header, parts)
            self.settle()
            return answer
        except NotFound:
            # A call that deletes, made again.
            self.settle()
            raise
        finally:
            with self._changed:
                self._changes -= 1
                self._changed.notify_all()

    def settle(self) -> None:
        """Returns when all shards have what shard 0 has by now. Raises `unavailable`."""
        followers = self.followers
        try:
            version = self._of(CATALOGUE_SHARD).version()
        except Moved as error:
            raise Unavailable(
                "it is done on shard 0, which another process has by now; the same call again waits for "
                "the other shards",
                retry_after_us=20_000,
            ) from error
        self._tell_all()
        self._wait(version, followers)

    def delete_idle(self) -> None:
        """Deletes what is idle on every shard now, not at the next look: where time is moved by hand."""
        if self._idle is not None:
            self._idle.delete_now()
            self.settle()

    def _tell_all(self) -> None:
        if self._idle is not None:
            self._idle.look()
        for follower in self.followers:
            follower.poller.wake()

    def _wait(self, version: int, followers: list[Follower]) -> None:
        def missing() -> list[Follower]:
            return [f for f in followers if f.version is None or f.version < version]

        with self._changed:
            self._changed.wait_for(lambda: self._is_over(followers) or not missing(), SETTLE_S)
            late = missing()
        if late:
            numbers = [follower.number for follower in late]
            why = next((f"; {f.error}" for f in late if f.error is not None), "")
            raise Unavailable(
                "it is done on shard 0, but these shards did not follow in time: "
                f"{', '.join(map(str, numbers))}. They will, and the same call again waits for them{why}",
                retry_after_us=1_000_000,
                details={"shards": numbers},
            )

    def _is_over(self, followers: list[Follower]) -> bool:
        return self._stopping or any(follower.poller.stopping for follower in followers)

    def note_progress(self) -> None:
        """A follower has something, or can't be told now."""
        with self._changed:
            self._changed.notify_all()

    # Shards that ask

    def catch_up(self, service: Service, error: NotFound | None = None) -> bool:
        """Has a shard of this process follow now: whether it has something that it had not.

        For one that begins, and for one that doesn't know a topic that it was asked for.
        """
        number = service.placement.catalogue.place.number
        asks_for_topic = error is None or "topic" in error.details
        if number == CATALOGUE_SHARD or not asks_for_topic or self._stopping:
            return False
        with self._asking[number]:
            asked_at = self._asked_at.get(number)
            if asked_at is not None and self._monotonic() - asked_at < _ASK_AGAIN_S:
                # Another call has asked a moment ago: what it brought is here.
                return error is not None and self._knows(service, error)
            try:
                return self._pull(number)
            except FastiError as failed:
                _log.info("shard %d could not ask for the catalogue: %s", number, failed)
                return False
            finally:
                self._asked_at[number] = self._monotonic()

    def _knows(self, service: Service, error: NotFound) -> bool:
        return error.details["topic"] in service.placement.catalogue.engine.state.by_name

    def _pull(self, number: int) -> bool:
        shard, source = self._of(number), self._way_to(CATALOGUE_SHARD)
        begun = has = shard.version()
        while True:
            page = source.read(has)
            if page.version == page.after and page.live is None:
                return has != begun
            told = shard.follow(page)
            if told == has:
                return has != begun
            has = told

    # What the actions of other processes ask

    def of_shard(self, service: Service) -> LocalShard:
        """A shard of this process. Raises `moved`."""
        return self._of(service.placement.catalogue.place.number)

    def _of(self, number: int) -> LocalShard:
        shard = self._local.get(number)
        if shard is None:
            raise moved(number, self._host.map.leader(number))
        return shard
