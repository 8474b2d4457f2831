"""Consumer groups of a log beside the naive model, under everything that can be asked of them.

Several groups, plain and ordered by key, several sessions and consumers, time that makes leases run
out and segments too old, resets, transactions, checkpoints and restarts, in any order. At the end
all that is left is drained: every row that retention left ends up acked or dead, in every group.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fasti.core import agenda
from fasti.core import commands as co
from fasti.core.delivery import turns
from fasti.core.log import commands as lo
from fasti.core.log import dead as log_dead
from fasti.core.log import order as log_order
from fasti.core.log import serving as log_serving
from fasti.core.log import turns as log_turns
from fasti.core.log import window as log_window
from fasti.model import SECOND_US, SEQUENCE_BITS, RetryPolicy, TopicSettings
from tests.properties.groups_rig import TOPIC, Rig, int64s, words

WINDOW_ROWS = 12
DEAD_MAX = 6
PARTITIONS = 2
GROUPS = ("plain", "other", "ordered")
CONSUMERS = ("w1", "w2", "w3")
KEYS = ("a", "b", "c", None)
REASONS = ("", "broken", "too late")
SPANS_US = [0, 1, SECOND_US, 5 * SECOND_US, 30 * SECOND_US]


@pytest.fixture(autouse=True, scope="module")
def _small(request: Any) -> Any:
    """Bounds small enough that every run meets them."""
    patch = pytest.MonkeyPatch()
    for module in (log_window, log_serving):
        patch.setattr(module, "WINDOW_ROWS", WINDOW_ROWS)
    for name, value in {"_ROWS_MIN": 4, "_ROWS_KEPT": 6, "_SCANNED_ROWS": 2}.items():
        patch.setattr(log_window, name, value)
    for name, value in {"DEAD_MAX": DEAD_MAX, "_UNSORTED_MAX": 2, "_GAPS_MIN": 2}.items():
        patch.setattr(log_dead, name, value)
    patch.setattr(log_serving, "KEYS_AHEAD", 5)
    patch.setattr(log_order, "KEYS_AHEAD", 5)
    patch.setattr(log_order, "_LOOKED_AT", 3)
    for name, value in {"TURN_ROWS": 5, "TURN_ROWS_MIN": 2}.items():
        patch.setattr(log_turns, name, value)
    patch.setattr(turns, "SERVED_PER_STEP", 7)
    patch.setattr(agenda, "_SIZE_MIN", 3)
    yield
    patch.undo()


class GroupsMachine(RuleBasedStateMachine):
    """Draws what happens to groups."""

    rig: Rig

    @initialize(data=st.data())
    def create(self, data: st.DataObject) -> None:
        topic = TopicSettings(
            kind="log",
            partitions=PARTITIONS,
            lease_us=data.draw(st.sampled_from([SECOND_US, 10 * SECOND_US])),
            hold_us=20 * SECOND_US,
            max_attempts=data.draw(st.sampled_from([0, 2, 3])),
            retry=RetryPolicy(SECOND_US, 2.0, 5 * SECOND_US, 0.0),
            segment_age_us=data.draw(st.sampled_from([0, 0, 40 * SECOND_US])),
        )
        leases = data.draw(st.sampled_from([6, 1_000]))
        self.rig = Rig(topic, WINDOW_ROWS, DEAD_MAX, leases)
        offsets = [0] * PARTITIONS
        self.rig.do(
            lo.CreateGroup(TOPIC, "ordered", int64s(offsets), True),
            lambda: self.rig.model.create_group("ordered", offsets, True),
            lambda _: None,
        )

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self._drain()
            self.rig.close()

    # Rows

    @rule(
        partition=st.integers(0, PARTITIONS - 1),
        keys=st.lists(st.sampled_from(KEYS), min_size=2, max_size=9),
    )
    def produce(self, partition: int, keys: list[str | None]) -> None:
        self.rig.produce(partition, keys)

    produce_more = produce

    @rule(data=st.data(), partition=st.integers(0, PARTITIONS - 1), sure=st.integers(0, 3))
    def truncate(self, data: st.DataObject, partition: int, sure: int) -> None:
        """Mostly what is finished everywhere."""
        log = self.rig.model.logs[partition]
        places = [group.places[partition] for group in self.rig.model.groups.values()]
        before = min([place.committed for place in places], default=log.end)
        if sure == 0:
            before = data.draw(st.integers(0, log.end + 1))
        self.rig.do(
            lo.Truncate(TOPIC, partition, before),
            lambda: self.rig.model.trim(partition, before),
            lambda _: None,
        )

    # Groups

    def _offsets(self, data: st.DataObject) -> list[int]:
        return [
            data.draw(st.integers(-2, log.end + 1) | st.integers(log.earliest, log.end))
            for log in self.rig.model.logs
        ]

    @rule(data=st.data(), partition=st.integers(-1, PARTITIONS - 1))
    def reset(self, data: st.DataObject, partition: int) -> None:
        behind = [name for name, its in self.rig.model.groups.items() if its.is_behind]
        group = data.draw(st.sampled_from(behind or GROUPS))
        self._reset(group, self._offsets(data), partition)

    def _reset(self, group: str, offsets: list[int], partition: int) -> None:
        wanted = int64s(offsets if partition < 0 else offsets[:1])
        self.rig.do(
            lo.ResetGroup(TOPIC, group, wanted, partition),
            lambda: self.rig.model.reset_group(group, offsets, partition),
            lambda _: None,
        )

    @rule(data=st.data(), group=st.sampled_from(GROUPS))
    def make_or_delete(self, data: st.DataObject, group: str) -> None:
        delete = group in self.rig.model.groups and data.draw(st.integers(0, 3)) == 0
        if delete:
            command: Any = lo.DeleteGroup(TOPIC, group)
            self.rig.do(command, lambda: self.rig.model.delete_group(group), lambda _: None)
            return
        offsets, ordered = self._offsets(data), group == "ordered"
        command = lo.CreateGroup(TOPIC, group, int64s(offsets), ordered)
        self.rig.do(
            command,
            lambda: self.rig.model.create_group(group, offsets, ordered),
            lambda _: None,
        )

    # Sessions

    @rule(
        group=st.sampled_from(GROUPS),
        session=st.integers(1, 4),
        consumer=st.sampled_from(CONSUMERS),
        count=st.integers(0, 9),
        wait=st.booleans(),
    )
    def lease(self, group: str, session: int, consumer: str, count: int, wait: bool) -> None:
        self.rig.lease(group, session, consumer, count, wait)

    lease_more = lease

    @rule(data=st.data(), group=st.sampled_from(GROUPS), heart=st.booleans())
    def beat_or_detach(self, data: st.DataObject, group: str, heart: bool) -> None:
        if not heart:
            self._detach(data.draw(st.integers(1, 4)))
            return
        consumer = data.draw(st.sampled_from(CONSUMERS))
        self.rig.do(
            co.Heartbeat(TOPIC, consumer, group=group),
            lambda: self.rig.model.heartbeat(group, consumer),
            lambda reply: reply.value,
        )

    @rule(data=st.data(), group=st.sampled_from(GROUPS), silent=st.booleans(), more=st.booleans())
    def listen(self, data: st.DataObject, group: str, silent: bool, more: bool) -> None:
        """Nothing comes from a consumer any more, or something comes again."""
        consumer, model = data.draw(st.sampled_from(CONSUMERS)), self.rig.model
        names = model.groups[group].line.names if group in model.groups else {}
        session = names.get(consumer, 1)
        if not silent:
            self.rig.do(
                co.Heard(TOPIC, session, consumer, more, group=group),
                lambda: model.heard(group, session, consumer, more),
                lambda _: None,
            )
            return
        after = data.draw(st.sampled_from([0, *(token for _, _, token in self.rig.seen[-3:])]))
        self.rig.do(
            co.Unheard(TOPIC, session, consumer, after, more, group=group),
            lambda: model.unheard(group, session, consumer, after, more),
            lambda reply: reply.value,
        )

    def _detach(self, session: int) -> None:
        self.rig.do(co.Detach(session), lambda: self.rig.model.detach(session), lambda _: None)

    # Under a lease

    def _rows(self, data: st.DataObject) -> tuple[str, list[tuple[int, int]]]:
        """Leases of one group that are live, most of them; or as they once were handed out."""
        seen = self.rig.seen
        group = data.draw(st.sampled_from(sorted({each[0] for each in seen})))
        mine = [(i, token) for its, i, token in seen if its == group]
        live = self.rig.model.live(group) if group in self.rig.model.groups else []
        old = data.draw(st.integers(0, 4)) == 0
        chosen = st.sampled_from(mine if old or not live else live)
        return group, data.draw(st.lists(chosen, min_size=1, max_size=6))

    @precondition(lambda self: self.rig.seen)
    @rule(data=st.data(), verb=st.sampled_from(["ack", "nack", "reject", "reject"]))
    def use(self, data: st.DataObject, verb: str) -> None:
        group, rows = self._rows(data)
        more = {} if verb == "ack" else {"reason": data.draw(st.sampled_from(REASONS))}
        self.rig.use(verb, group, rows, **more)

    @precondition(lambda self: self.rig.seen)
    @rule(data=st.data(), count=st.integers(1, 30))
    def ack_many(self, data: st.DataObject, count: int) -> None:
        """The latest leases of a group in the order in which they came: ranges, mostly."""
        group = data.draw(st.sampled_from(GROUPS))
        rows = [(i, token) for its, i, token in self.rig.seen if its == group][-count:]
        if rows and group in self.rig.model.groups:
            self.rig.use("ack", group, rows)

    @precondition(lambda self: self.rig.seen)
    @rule(data=st.data(), count=st.integers(2, 5), clean=st.booleans())
    def acks_in_one_step(self, data: st.DataObject, count: int, clean: bool) -> None:
        """Several small acks, in several groups: they may be decided together."""
        model, parts = self.rig.model, list[tuple[str, list[tuple[int, int]]]]()
        for _ in range(count):
            group, rows = self._rows(data)
            if clean and group in model.groups:
                taken = {row for its, chosen in parts if its == group for row in chosen}
                rows = [row for row in dict.fromkeys(rows) if row not in taken]
            if rows:
                parts.append((group, rows))
        self.rig.do_all(
            [
                (self.rig.use_command("ack", *part), partial(model.use, "ack", *part), words)
                for part in parts
            ]
        )

    @precondition(lambda self: self.rig.seen)
    @rule(data=st.data(), span_us=st.sampled_from(SPANS_US))
    def release(self, data: st.DataObject, span_us: int) -> None:
        group, rows = self._rows(data)
        due_us = [self.rig.model.now_us + span_us * (place % 2) for place in range(len(rows))]
        self.rig.use("release", group, rows, due_us=due_us)

    @precondition(lambda self: self.rig.seen)
    @rule(data=st.data(), length_us=st.sampled_from([SECOND_US, 60 * SECOND_US]))
    def extend(self, data: st.DataObject, length_us: int) -> None:
        group, rows = self._rows(data)
        self.rig.use("extend", group, rows, length_us=length_us)

    @precondition(lambda self: self.rig.seen)
    @rule(data=st.data(), count=st.integers(1, 3))
    def transaction(self, data: st.DataObject, count: int) -> None:
        """Acks and the like, in several groups, with rows that are appended."""
        parts: list[tuple[str, dict[str, Any]]] = []
        commands: list[Any] = []
        for _ in range(count):
            verb = data.draw(st.sampled_from(["ack", "ack", "nack", "reject", "purge", "produce"]))
            if verb == "produce":
                given: dict[str, Any] = {"partition": 0, "keys": ["a", None]}
                if any(name == "produce" for name, _ in parts):
                    continue
                commands.append(self.rig.produce_command(**given))
                parts.append(("produce", given))
            elif verb == "purge":
                group, ids = self._dead(data)
                commands.append(co.Purge(TOPIC, int64s(ids), group=group))
                parts.append(("purge", {"group": group, "ids": ids}))
            else:
                group, rows = self._rows(data)
                commands.append(self.rig.use_command(verb, group, rows))
                parts.append(("use", {"verb": verb, "group": group, "rows": rows}))
        if parts:
            self.rig.do(
                co.Transaction(commands),
                lambda: self.rig.model.transaction(parts),
                lambda reply: reply.committed,
            )

    # The dead

    def _dead(self, data: st.DataObject) -> tuple[str, list[int]]:
        """Rows of a group, those first that are dead."""
        dead = {
            name: [
                number << SEQUENCE_BITS | offset + 1
                for number, place in enumerate(group.places)
                for offset in place.dead
            ]
            for name, group in self.rig.model.groups.items()
        }
        with_some = [name for name, ids in dead.items() if ids]
        group = data.draw(st.sampled_from(with_some or GROUPS))
        known = [i for its, i, _ in self.rig.seen if its == group]
        others = [*known[-4:], 1, 99, 1 << 53]
        chosen = st.sampled_from([*dead.get(group, []) * 5, *others])
        return group, data.draw(st.lists(chosen, min_size=1, max_size=6))

    @precondition(lambda self: self.rig.seen)
    @rule(data=st.data(), span_us=st.sampled_from(SPANS_US), again=st.integers(0, 3))
    def redrive_or_purge(self, data: st.DataObject, span_us: int, again: int) -> None:
        group, ids = self._dead(data)
        if again == 0:
            command: Any = co.Purge(TOPIC, int64s(ids), group=group)
            self.rig.do(command, lambda: self.rig.model.purge(group, ids), words)
            return
        due_us = self.rig.model.now_us + span_us
        command = co.Redrive(TOPIC, int64s(ids), when=co.When(due_us=due_us), group=group)
        self.rig.do(command, lambda: self.rig.model.redrive(group, ids, due_us), words)

    # Time, and starting anew

    @rule(now_us=st.sampled_from(SPANS_US), tick=st.sampled_from(SPANS_US))
    def advance(self, now_us: int, tick: int) -> None:
        self.rig.advance(now_us, tick)

    @rule()
    def restart(self) -> None:
        self.rig.restart()

    @rule()
    def checkpoint(self) -> None:
        self.rig.checkpoint()

    def _drain(self) -> None:
        """One consumer acks all that there is, group by group."""
        for session in range(1, 5):
            self._detach(session)
        for name in list(self.rig.model.groups):
            group = self.rig.model.groups[name]
            if group.is_behind:
                self._reset(name, [-1] * PARTITIONS, -1)
            for _ in range(100):
                self.rig.advance(60 * SECOND_US, 100 * SECOND_US)
                if group.is_behind or not any(
                    each["lag"] for each in self.rig.model.describe(name)
                ):
                    break
                del self.rig.seen[:]
                self.rig.lease(name, 9, "drain", 5, wait=False)
                if self.rig.seen:
                    self.rig.use("ack", name, [(i, token) for _, i, token in self.rig.seen])
            else:
                raise AssertionError(f"{name} is never done: {self.rig.model.describe(name)}")


QUICK = settings(max_examples=50, stateful_step_count=40)
THOROUGH = settings(max_examples=2_000, stateful_step_count=80)


@pytest.mark.timeout(600)
def test_groups_and_model_agree() -> None:
    run_state_machine_as_test(GroupsMachine, settings=QUICK)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_groups_and_model_agree_thoroughly() -> None:
    run_state_machine_as_test(GroupsMachine, settings=THOROUGH)
