"""How an app reaches its broker: its client, its producers, and the topics that its handlers need.

Nothing is connected before it is used, and after `close` the next use connects again. A process that
was forked, and a worker process, have a client of their own. Any thread may call.
"""

from __future__ import annotations

import threading

from fasti.app.handler import AnyHandler
from fasti.app.reach import Reach
from fasti.app.topics import ensure_topic
from fasti.client import forking
from fasti.client.address import parse_address
from fasti.client.arguments import ConnectionOptions
from fasti.client.client import Client, connect
from fasti.client.failures import OnFailure
from fasti.client.messages import Messages
from fasti.client.producer import Producer
from fasti.errors import FastiError, Unavailable


class BrokerAccess:
    """The part of an app that talks to the broker; see `App` for the arguments."""

    def __init__(
        self,
        address: str | Client | None,
        owner: str,
        on_failure: OnFailure | None,
        connection: ConnectionOptions,
    ) -> None:
        self.address = None if isinstance(address, Client) else address
        self.owner = owner
        self.on_failure = on_failure
        self.handlers: list[AnyHandler] = []
        self._connection = connection
        self._bound = address if isinstance(address, Client) else None
        self._client: Client | None = None
        self._producers: dict[str, Producer] = {}
        self._ensured: set[str] = set()
        self._lock = threading.RLock()
        # In a worker process whose parent's broker can't be reached.
        self._apart = False

    def _fork_locks(self) -> list[forking.Lock]:
        """None: a child begins with a new one."""
        return []

    def _forked(self) -> None:
        self._lock = threading.RLock()
        self._client, self._producers, self._ensured = None, {}, set()

    @property
    def client(self) -> Client:
        """The client; connected now if it was not. Raises what `connect` raises."""
        with self._lock:
            if self._bound is not None:
                return self._bound
            if self._apart:
                raise Unavailable(
                    "a worker process can't use the client or the embedded broker of its parent"
                )
            if self._client is None:
                self._client = connect(self.address, owner=self.owner, **self._connection)
            return self._client

    def use(self, reach: Reach) -> None:
        """Has it reach its broker otherwise than it was made to, as far as that is given."""
        self.address = reach.address or self.address
        self._connection |= reach.options()

    @property
    def bound(self) -> Client | None:
        """The client that it was given, if it doesn't make its own."""
        return self._bound

    @property
    def connected(self) -> Client | None:
        """The client, if there is one now."""
        return self._bound or self._client

    @property
    def reach_for_others(self) -> Reach | None:
        """How another process reaches the broker; None if none can."""
        if self._bound is not None:
            return None
        place = parse_address(self.address)
        if place.directory is not None:
            return None
        options = self._connection
        return Reach(
            str(place), options.get("token"), options.get("tls_ca"), options.get("tls_client_cert")
        )

    def in_worker_process(self, reach: Reach | None) -> None:
        """Called in a worker process: how its parent's broker is reached, if it can be."""
        self._apart = reach is None
        if reach is not None:
            self.use(reach)

    def producer(self, topic: str) -> Producer:
        """The app's producer of a topic; the topic of a handler is made if it is missing."""
        producer = self._producers.get(topic)
        if producer is not None:
            return producer
        with self._lock:
            if topic not in self._producers:
                self.ensure(topic)
                self._producers[topic] = self.client.producer(
                    topic, owner=self.owner or None, on_failure=self.on_failure
                )
            return self._producers[topic]

    def has_ensured(self, topic: str) -> bool:
        """Whether `ensure` has nothing to do."""
        return topic in self._ensured

    def ensure(self, topic: str) -> None:
        """Makes the topic of a handler if it is missing; looks once for each connection."""
        if topic in self._ensured:
            return
        for handler in self.handlers:
            if handler.topic == topic:
                ensure_topic(self.client, handler.settings)
        self._ensured.add(topic)

    def messages(self, topic: str) -> Messages:
        """A topic's pending messages, changed in the app's name. Makes it as `producer` does."""
        self.ensure(topic)
        return self.client.messages(topic, owner=self.owner or None)

    def close(self) -> None:
        """Sends what is under way and disconnects; the next use connects again."""
        with self._lock:
            producers, self._producers = self._producers, {}
            self._ensured = set()
            client, self._client = self._client, None
        problem: FastiError | None = None
        for producer in producers.values():
            try:
                producer.close(timeout="30s")
            except FastiError as error:
                problem = problem or error
        if client is not None:
            client.close()
        if problem is not None:
            raise problem
