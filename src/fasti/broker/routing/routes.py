"""Where the rows of a produce go besides their topic, worked out in the thread that received them.

`RouteBook` knows the bindings of the topics that have some, as of the last look, and
gives each batch its `Routes` under that version. The engine compares versions: a small batch under
an old one it routes itself, a large one is refused (`overloaded`, at once retryable), and the book
looks again. So hardly ever is a pattern looked at on the sequencer, and none is applied that is not
in force. Any thread may use a book.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fasti.broker.placement import shard_for
from fasti.broker.topics import read_topics
from fasti.core.command import Command
from fasti.core.routing.commands import ReadBindings
from fasti.core.routing.matching import Matcher, routes_of
from fasti.errors import FastiError, NotFound, Overloaded

if TYPE_CHECKING:
    from fasti.broker.placement import Placement

_TRIES = 4


class RouteBook:
    """The matchers of a broker's topics, by name. A topic that is not here has no bindings."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._limits = placement.catalogue.settings.limits
        self._matchers: dict[str, Matcher] = {}
        self._lock = threading.Lock()
        self._is_read = False
        # Whether a topic may have bindings: while none has, batches need not ask.
        self.may_route = True

    def route(self, command: Command) -> None:
        """Gives what a command produces its routes, where a topic is known to have bindings."""
        for produce in command.produces():
            if not self._is_read:
                self._read_all()
            matcher = self._matchers.get(produce.topic)
            if matcher is not None:
                produce.routes = routes_of(matcher, produce, self._limits)

    def _read_all(self) -> None:
        """All bindings that there are, at the first use; from then on who changes them tells."""
        # If the engine can't be asked now, batches are refused, and what they lack is learnt.
        with suppress(FastiError):
            for shard in self._placement.shards():
                for topic in read_topics(shard):
                    if topic.bindings:
                        self.refresh(topic.name)
            self._is_read = True
            self._note_bindings()

    def knows(self, topic: str) -> bool:
        """Whether a topic had bindings when it was last looked at."""
        return topic in self._matchers

    def refresh(self, topic: str) -> None:
        """Looks at a topic's bindings again. Waits for the engine."""
        with self._lock:
            try:
                reply = self._placement.shard_of(topic).call(ReadBindings(topic))
                if reply.error is not None:
                    raise reply.error
                version, bindings = reply.value
            except NotFound:
                version, bindings = 0, []
            if bindings:
                self._matchers[topic] = Matcher(version, bindings)
            else:
                self._matchers.pop(topic, None)
        self._note_bindings()

    def _note_bindings(self) -> None:
        with self._lock:
            self.may_route = bool(self._matchers) or not self._is_read

    def topic_gone(self, topic: str) -> None:
        """A topic was deleted, and with it the bindings that led to it."""
        self._matchers.pop(topic, None)
        self._note_bindings()
        for name, matcher in list(self._matchers.items()):
            if topic in matcher.targets:
                with suppress(FastiError):
                    self.refresh(name)

    def learn(self, error: FastiError | None) -> bool:
        """Whether a refusal was about bindings that were others: then they are known by now."""
        if not isinstance(error, Overloaded) or "bindings_of" not in error.details:
            return False
        topic = error.details["bindings_of"]
        known = self._matchers.get(topic)
        if known is None or known.version != error.details["bindings_version"]:
            # If the engine can't be asked now, the next refusal asks again.
            with suppress(FastiError):
                self.refresh(topic)
        return True

    def call(self, command: Command) -> Any:
        """A command's reply; what it produces is routed, anew if the bindings were others.

        A few times, should they change all the while; then the refusal is the reply.
        """
        produces = any(True for _ in command.produces())
        shard = shard_for(self._placement, command)
        tries = 0
        while True:
            tries += 1
            self.route(command)
            reply = shard.call(command, lead=True)
            if not produces or tries == _TRIES or not self.learn(reply.error):
                return reply
