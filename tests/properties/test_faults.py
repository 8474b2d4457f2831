"""A fault of the program, at any line: it leaves nothing of its command, or the engine is dropped.

The engine says which of the two it is. Where it says that the command was refused, everything must be
as if it had never come: what a checkpoint would keep, what readers see, who waits for what. Where it
says that the step failed, nothing was written, so what the next engine reads is what was there before.
"""

from __future__ import annotations

from typing import Any

import pytest

from fasti.core import commands as co
from fasti.core.log.commands import CreateGroup, DeleteGroup, DescribeGroups, ResetGroup, Truncate
from fasti.core.routing.commands import Bind, Unbind
from fasti.core.work import StepFailed
from fasti.errors import InternalError
from fasti.model import SECOND_US
from fasti.storage.file_storage import FileStorage
from fasti.storage.local_shard import LocalShard
from tests.properties.fault_rig import InjectedFault, Injection
from tests.properties.mixed_rig import GROUP, SHARD, TOPICS, MixedShard
from tests.properties.test_mixed_transactions import same
from tests.seeds import seeds


class Faulty(MixedShard):
    """A shard whose commands may meet a fault."""

    refused = dropped = done = 0

    def sessions(self) -> Any:
        """Who waits, as what, for how many."""
        engine = self.shard.engine
        groups = engine.kind("log").turns._lines  # type: ignore[attr-defined]
        lines = {key: line for key, line in (engine.turns._lines | groups).items() if line}
        return {
            key: [(each.session, each.consumer, each.credit) for each in line._waiting.values()]
            for key, line in lines.items()
        }

    def command(self) -> Any:
        """Anything that clients may ask for."""
        rng = self.rng
        choice = rng.random()
        if choice < 0.4:
            return self.part()
        if choice < 0.6:
            return co.Transaction([self.part() for _ in range(rng.randint(2, 4))])
        topic = rng.choice(["mail", "jobs", "events"])
        group = GROUP if topic == "events" else ""
        if choice < 0.8:
            session, consumer = rng.choice([(1, "worker"), (2, "other")])
            return co.Lease(topic, session, consumer, 2, wait=rng.random() < 0.5, group=group)
        return rng.choice(
            [
                co.Heartbeat(topic, "worker", group),
                co.Count(topic),
                co.List(topic) if topic != "events" else co.Count(topic),
                co.CreateTopic("more", TOPICS["mail"]),
                co.DeleteTopic("more"),
                co.ChangeTopic("mail", TOPICS["mail"]),
                co.Detach(2),
                co.Withdraw(1),
                co.PauseTopic(topic, rng.random() < 0.5),
                co.ReleaseLeases(topic, "worker", group=group),
                co.DescribeConsumers(""),
                Bind("jobs", "a.>", "mail"),
                Unbind("jobs", "a.>", "mail"),
                CreateGroup("events", "h"),
                ResetGroup("events", "h", -1),
                DeleteGroup("events", "h"),
                DescribeGroups("events"),
                Truncate("events", 0, 0),
            ]
        )

    def meet_fault(self, nth: int, beside: list[Any]) -> None:
        """A command and others in one step, with a fault at the nth line."""
        command = self.command()
        before, waiting = self.seen(), self.sessions()
        injection = Injection(nth)
        try:
            step = injection.run(lambda: self.shard.engine.step([command, *beside], self.now_us, 0))
        except StepFailed as failed:
            self.dropped += isinstance(failed.__cause__, InjectedFault)
            self.reopen()
            same(before, self.seen(), command, injection.place)
            return
        places = [
            n for n, reply in enumerate(step.replies) if isinstance(reply.error, InternalError)
        ]
        if not injection.place or (step.faults and not places):
            self.done += 1
        else:
            assert len(step.faults) == 1
            self.refused += 1
        others = [reply for n, reply in enumerate(step.replies) if n not in places]
        assert not any(isinstance(reply.error, InternalError) for reply in others)
        self.write(step)
        if places == [0] and not beside:
            assert not [frame for frame in step.frames if frame.events], injection.place
            same(before, self.seen(), command, injection.place)
            assert self.sessions() == waiting, injection.place
        self.reopen_alike()

    def write(self, step: Any) -> None:
        store = self.shard.store
        if step.frames:
            store.journal.append(store.encode(step.frames))
            store.journal.sync()

    def reopen(self) -> None:
        self.shard.close()
        self.shard = LocalShard(FileStorage(self.files), SHARD)

    def reopen_alike(self) -> None:
        """What the engine has is what its journal says."""
        if self.rng.random() < 0.1:
            now = self.seen()
            self.reopen()
            same(now, self.seen())


def meet_faults(seed: int, commands: int) -> Faulty:
    shard = Faulty(seed)
    for _ in range(commands):
        if shard.rng.random() < 0.3:
            shard.take()
        if shard.rng.random() < 0.1:
            shard.now_us += SECOND_US
        beside = [co.Count("mail"), shard.part()] if shard.rng.random() < 0.3 else []
        shard.meet_fault(int(2 ** shard.rng.uniform(0, 10)), beside)
    shard.shard.close()
    return shard


@pytest.mark.parametrize("seed", seeds(2, range(4)))
def test_a_fault_leaves_nothing_or_ends_the_engine(seed: int) -> None:
    shard = meet_faults(seed, commands=60)
    # All of it was met: the test is no good if a fault always, or never, ends the engine.
    assert shard.refused > 5
    assert shard.dropped > 5
    assert shard.done > 1


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 108))
def test_many_faults_leave_nothing_or_end_the_engine(seed: int) -> None:
    meet_faults(seed, commands=400)
