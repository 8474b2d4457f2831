"""What the facts mean: whether every promise was kept.

Everything is judged from what the workers told. `leases_lasted` says that no lease can have ended
by itself (it is longer than the test, and no consumer died): then a second delivery of a message is
allowed only after its first was nacked or released. Where leases may end, `lease_us` is their length:
then a second delivery may also come when that is over.

A send that failed without a definite word may have happened or not; each other one is known.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

from tests.integration.trouble.facts import Book, Fact

# What a send may end with that has happened all the same.
MAYBE = frozenset({"timed_out", "unknown", "no_quorum", "storage_failed", "unavailable", "closed"})


class Got(NamedTuple):
    """One delivery to user code."""

    id: int
    name: str
    attempts: int
    due_us: int
    started_us: int
    token: int
    who: str
    at: int
    wall_us: int


class Ledger:
    """The facts of a book, by message."""

    def __init__(self, book: Book, others_names: str = "-") -> None:
        self.book = book
        # Messages that no worker sent: the test did, under names that begin like this.
        self._others_names = others_names
        self.others: set[int] = set()
        # Names that were to be sent, and those of them that were answered ok: id and version.
        self.tried: dict[str, Fact] = {}
        self.ok: dict[str, tuple[int, int]] = {}
        self._names: dict[int, dict[str, tuple[int, int]]] = defaultdict(dict)
        self.answers: dict[str, str] = {}
        # Names of which nobody can say whether they were sent, and why.
        self.maybe: dict[str, str] = {}
        self.got: dict[int, list[Got]] = defaultdict(list)
        self.returned: dict[int, list[tuple[int, str, str]]] = defaultdict(list)
        self.acked: dict[int, int] = {}
        self.acker: dict[int, str] = {}
        self.changes: dict[int, list[Fact]] = defaultdict(list)
        # When a move was asked for, by the message and its new due time.
        self.asked: dict[tuple[int, int], int] = {}
        self.refused: list[tuple[str, Fact]] = []
        self.without_answer: set[str] = set()
        for fact in book.all():
            self._hear(fact)

    def _hear(self, fact: Fact) -> None:
        what = fact["what"]
        if what == "try":
            for name in fact["names"]:
                self.tried[name] = fact
        elif what == "sent":
            for name, (status, message, version) in zip(fact["names"], fact["rows"], strict=True):
                self.answers[name] = status
                if status == "ok":
                    self.ok[name] = (message, version)
        elif what == "send_failed":
            for name in fact["names"]:
                self.answers[name] = fact["code"]
                if fact["code"] in MAYBE:
                    self.maybe[name] = fact["code"]
        elif what == "got":
            for row in fact["rows"]:
                self.got[row[0]].append(Got(*row, fact["who"], fact["at"], fact["wall_us"]))
        elif what in ("ack", "nack", "release"):
            for message in fact["ids"]:
                self.returned[message].append((fact["at"], what, fact["who"]))
        elif what == "acked":
            for message in fact["ids"]:
                self.acked.setdefault(message, fact["at"])
                self.acker.setdefault(message, fact["who"])
        elif what == "change" and fact["verb"] == "move":
            self.asked[fact["id"], fact["due"]] = fact["at"]
        elif what in ("changed", "change_unknown"):
            self.changes[fact["id"]].append(fact)
        elif what == "consume_failed":
            self.without_answer.add(fact["who"])
        elif what == "refused":
            self.refused += [(fact["who"], failure) for failure in fact["failures"]]

    # What is owed

    def cancelled(self) -> dict[int, Fact]:
        """Messages whose cancel was answered ok."""
        return {
            message: fact
            for message, facts in self.changes.items()
            for fact in facts
            if fact["verb"] == "cancel" and fact.get("status") == "ok"
        }

    def maybe_cancelled(self) -> set[int]:
        return {
            message
            for message, facts in self.changes.items()
            if any(f["verb"] == "cancel" and f["what"] == "change_unknown" for f in facts)
        }

    def owed(self) -> set[int]:
        """Ids that were promised and not certainly cancelled."""
        return {message for message, _ in self.ok.values()} - self.cancelled().keys()

    def unacked(self) -> set[int]:
        """Owed, and nobody was told yet that they are done."""
        return self.owed() - self.acked.keys() - self.maybe_cancelled() - self.maybe_acked()

    def maybe_acked(self) -> set[int]:
        """Acked by consumers to which it happened that they had no answer in time."""
        return {
            message
            for message, words in self.returned.items()
            if any(what == "ack" and who in self.without_answer for _, what, who in words)
        }

    # The verdict

    def check(
        self, leases_lasted: bool = True, every_send_ok: bool = True, lease_us: int = 0
    ) -> None:
        """All of it, but for what is still owed."""
        if every_send_ok:
            self.every_send_was_answered()
        self._nothing_early()
        self._what_was_got_was_sent()
        self._one_send_one_message()
        self._done_is_final()
        self._cancelled_is_final()
        if leases_lasted:
            assert not self.refused, self.refused[:5]
            self._one_delivery_at_a_time()
        if lease_us:
            self._one_lease_at_a_time(lease_us)
        self._only_the_holder_acks()

    def nothing_lost(self, left: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        """Every promise was fulfilled, or can still be: `left` is what the broker has."""
        lost = self.unacked() - left
        assert not lost, f"{len(lost)} were lost: {[self._story(i) for i in sorted(lost)[:3]]}"

    def every_send_was_answered(self) -> None:
        silent = self.tried.keys() - self.answers.keys()
        assert not silent, f"{len(silent)} sends have no answer: {sorted(silent)[:5]}"
        words = {"ok", "conflict", "duplicate", "leased"}
        bad = {name: word for name, word in self.answers.items() if word not in words}
        assert not bad, f"{len(bad)} sends failed: {sorted(bad.items())[:5]}"
        keyless = {n for n, word in self.answers.items() if word != "ok"}
        assert all("keys" in self.tried[name] for name in keyless)

    def _nothing_early(self) -> None:
        for deliveries in self.got.values():
            for got in deliveries:
                assert got.due_us <= got.started_us <= got.wall_us, self._story(got.id)
        for name, (message, _) in self.ok.items():
            self._not_before_it_was_asked_for(name, message)

    def _not_before_it_was_asked_for(self, name: str, message: int) -> None:
        fact = self.tried[name]
        place = fact["names"].index(name)
        if "due" in fact:
            earliest = fact["due"][place]
        else:
            earliest = fact["wall_us"] + (fact["delays"][place] if "delays" in fact else 0)
        moved = [f["due"] for f in self.changes.get(message, ()) if f["verb"] == "move"]
        for got in self.got.get(message, ()):
            if got.name == name:
                assert got.due_us >= min([earliest, *moved]), self._story(message)
        self._where_it_was_moved_to(message)

    def _where_it_was_moved_to(self, message: int) -> None:
        """The delivery behind the last move has its due time, if that move is certain.

        One that came while the move had no answer yet may be the one behind it: if it was nacked,
        the next one is due when that says.
        """
        moves = [f for f in self.changes.get(message, ()) if f["verb"] == "move"]
        if moves and moves[-1].get("status") == "ok":
            asked_at, answered_at = self.asked[message, moves[-1]["due"]], moves[-1]["at"]
            since = [got for got in self.got.get(message, ()) if got.at > asked_at]
            if since and since[0].at > answered_at:
                assert since[0].due_us == moves[-1]["due"], self._story(message)

    def _what_was_got_was_sent(self) -> None:
        """Payloads are those that were promised last, and none that was refused."""
        updates = {
            f["name"]: f for facts in self.changes.values() for f in facts if f["verb"] == "update"
        }
        for message, deliveries in self.got.items():
            for got in deliveries:
                if got.name in updates:
                    assert updates[got.name].get("status") in ("ok", None), self._story(message)
                    continue
                if got.name.startswith(self._others_names):
                    self.others.add(message)
                    continue
                assert got.name in self.tried, f"from nowhere: {self._story(message)}"
                maybe = got.name in self.maybe or self.answers.get(got.name, "ok") == "ok"
                assert maybe, f"{self.answers[got.name]}: {self._story(message)}"
            self._replaced_in_order(message, [got.name for got in deliveries])

    def _replaced_in_order(self, message: int, names: list[str]) -> None:
        """One that went back may be replaced: what is delivered last is what was promised last."""
        if any(fact["verb"] == "update" for fact in self.changes.get(message, ())):
            return
        if any(name in self.maybe for name in names):
            return
        promised = {name: v for name, (_, v) in self.promised_as(message).items()}
        versions = [promised[name] for name in names if name in promised]
        assert versions == sorted(versions), self._story(message)
        if promised and message in self.acked:
            assert versions[-1:] == [max(promised.values())], self._story(message)

    def promised_as(self, message: int) -> dict[str, tuple[int, int]]:
        """The names under which a message was promised."""
        if not self._names:
            for name, promise in self.ok.items():
                self._names[promise[0]][name] = promise
        return self._names.get(message, {})

    def _one_send_one_message(self) -> None:
        ids: dict[str, set[int]] = defaultdict(set)
        for message, deliveries in self.got.items():
            for got in deliveries:
                ids[got.name].add(message)
        for name, (message, _) in self.ok.items():
            ids[name].add(message)
        twice = {name: found for name, found in ids.items() if len(found) > 1}
        assert not twice, f"sends that became two messages: {sorted(twice.items())[:5]}"

    def _done_is_final(self) -> None:
        for message, at in self.acked.items():
            after = [got for got in self.got.get(message, ()) if got.at > at]
            assert not after, f"delivered after its ack was answered: {self._story(message)}"

    def _cancelled_is_final(self) -> None:
        for message, fact in self.cancelled().items():
            after = [got for got in self.got.get(message, ()) if got.at > fact["at"]]
            assert not after, f"delivered after its cancel was answered: {self._story(message)}"
            assert message not in self.acked, self._story(message)

    def _one_delivery_at_a_time(self) -> None:
        for message, deliveries in self.got.items():
            for first, second in pairwise(deliveries):
                back = [
                    what
                    for at, what, who in self.returned[message]
                    if who == first.who and first.at <= at <= second.at and what != "ack"
                ]
                assert back, f"two leases at once: {self._story(message)}"
                counted = first.attempts + (back[0] == "nack")
                if second.name != first.name and second.name in self.tried:
                    counted = 1  # Replaced, which makes it new.
                assert second.attempts == counted, self._story(message)
            assert deliveries[0].attempts == 1, self._story(message)

    def _one_lease_at_a_time(self, lease_us: int) -> None:
        """A message comes again when it was given back, or its lease may have ended.

        A message may have been here for a while when user code got it, so its lease ends earlier than one
        length behind that; but it was renewed in time, so not by more than half of it.
        """
        for message, deliveries in self.got.items():
            for first, second in pairwise(deliveries):
                back = any(
                    who == first.who and first.at <= at <= second.at and what != "ack"
                    for at, what, who in self.returned[message]
                )
                over = second.at - first.at >= lease_us // 2
                assert back or over, f"two leases at once: {self._story(message)}"

    def _only_the_holder_acks(self) -> None:
        """Nobody's ack is answered ok that was asked for when another one had the message."""
        for message, who in self.acker.items():
            asked = max(
                (at for at, what, by in self.returned[message] if what == "ack" and by == who),
                default=0,
            )
            before = [got for got in self.got.get(message, ()) if got.at < asked]
            if before:
                assert before[-1].who == who, f"acked by {who}, not by its holder: " + self._story(
                    message
                )

    def _story(self, message: int) -> str:
        """Everything that is known of a message, in order: for whoever reads a failure."""
        told: list[tuple[int, Any]] = [(g.at, g._asdict()) for g in self.got.get(message, ())]
        told += [(at, (what, who)) for at, what, who in self.returned.get(message, ())]
        told += [(f["at"], f) for f in self.changes.get(message, ())]
        if message in self.acked:
            told.append((self.acked[message], "acked"))
        names = [f"{n} v{v}" for n, (i, v) in self.ok.items() if i == message]
        sends = [
            (f["at"], f["who"], f["what"])
            for f in self.book.all("try", "sent")
            if any(n.split(" ")[0] in f["names"] for n in names)
        ]
        return f"message {message} {names} {sends}: " + "; ".join(
            str(each) for _, each in sorted(told, key=lambda pair: pair[0])
        )
