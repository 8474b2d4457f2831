"""What handlers did: counted by each worker for itself, added up on request."""

from __future__ import annotations

from dataclasses import dataclass

from fasti.app.verdicts import Verdict


class WorkerTally:
    """Counts of one worker. Only that worker writes; any thread reads."""

    __slots__ = ("failed", "handled", "in_flight", "rejected", "replaced", "retried")

    def __init__(self) -> None:
        self.handled = self.failed = self.retried = self.rejected = 0
        self.in_flight = self.replaced = 0

    def count(self, verdict: Verdict) -> None:
        """How a message ended."""
        if verdict.good:
            self.handled += 1
        elif verdict.op == "nack" and not verdict.retry:
            self.failed += 1
        elif verdict.op == "reject":
            self.rejected += 1
        else:
            self.retried += 1


@dataclass(frozen=True, slots=True)
class HandlerStats:
    """Counts of one handler since the app was started, in this process.

    `handled` ended well, `failed` raised, ran over their time or lost their worker, `retried` are to
    come again as their handlers asked, `rejected` are dead. `refused`: what the broker no longer took because the
    lease was over. `replaced`: worker processes that were started anew.
    """

    topic: str
    handler: str
    handled: int = 0
    failed: int = 0
    retried: int = 0
    rejected: int = 0
    refused: int = 0
    in_flight: int = 0
    replaced: int = 0


def total(topic: str, handler: str, tallies: list[WorkerTally], refused: int = 0) -> HandlerStats:
    """The tallies of a handler's workers together."""
    return HandlerStats(
        topic,
        handler,
        handled=sum(tally.handled for tally in tallies),
        failed=sum(tally.failed for tally in tallies),
        retried=sum(tally.retried for tally in tallies),
        rejected=sum(tally.rejected for tally in tallies),
        refused=refused,
        in_flight=sum(tally.in_flight for tally in tallies),
        replaced=sum(tally.replaced for tally in tallies),
    )
