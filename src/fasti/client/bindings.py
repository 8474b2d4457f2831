"""Bindings: what a topic gets goes to other topics too.

Made by `client.bindings(topic)`; any thread may call.
"""

from __future__ import annotations

from typing import NamedTuple

from fasti.client.transport import Transport


class Binding(NamedTuple):
    """What comes under a subject that fits the pattern goes to the target too."""

    pattern: str
    target: str


class Bindings:
    """The bindings of one topic.

        orders = client.bindings("orders")
        orders.add("orders.*.created", "emails")      # any one word
        orders.add("orders.>", "audit")               # one word or more
        orders.list()
        orders.remove("orders.>", "audit")

    They hold from the moment at which `add` returns until `remove` returns. `>` alone fits
    everything, also messages without a subject.
    """

    def __init__(self, transport: Transport, topic: str) -> None:
        self.topic = topic
        self._transport = transport

    def add(self, pattern: str, target: str) -> bool:
        """Binds the topic to another one. Again: fine. Gives whether it is new.

        Raises `not_found` when one of the topics isn't there, `invalid_argument` on a bad pattern,
        the topic itself, or a kind that can't be bound.
        """
        header = {"topic": self.topic, "pattern": pattern, "target": target}
        return bool(self._transport.call("bind", header)[0]["created"])

    def remove(self, pattern: str, target: str) -> None:
        """Ends a binding. Raises `not_found` when there is none."""
        self._transport.call("unbind", {"topic": self.topic, "pattern": pattern, "target": target})

    def list(self) -> list[Binding]:
        """All of them, in the order in which they were made."""
        header, _ = self._transport.call("bindings", {"topic": self.topic})
        return [Binding(binding["pattern"], binding["target"]) for binding in header["bindings"]]

    def __repr__(self) -> str:
        return f"<Bindings of {self.topic!r}>"
