"""Callers who decide, write and sync by themselves when nobody else is at it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fasti.broker.shard import Shard
from fasti.broker.threads import Driver, Threads
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.errors import InternalError, OutcomeUnknown
from fasti.runtime import SystemRuntime
from tests.integration.shard_rig import SharedFiles, held_up, make_topic, produce, serving, shown

WAIT_S = 60.0


def elsewhere(work: Callable[[], Any]) -> Any:
    """What it returns in a thread that is not the main one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(WAIT_S)


def put(shard: Shard, *payloads: bytes, delay_us: int = 0) -> Any:
    command = co.Produce("t", Rows.of(list(payloads)), co.When(delay_us=delay_us))
    return shard.call(command, WAIT_S, lead=True)


def note_threads(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Which thread stepped, and which synced."""
    seen: list[tuple[str, int]] = []
    step, sync = shard.engine.step, shard.store.journal.sync

    def noted_step(inputs: Sequence[Any], *times: int) -> Any:
        if any(isinstance(command, co.Produce) for command in inputs):
            seen.append(("step", threading.get_ident()))
        return step(inputs, *times)

    def noted_sync() -> None:
        seen.append(("sync", threading.get_ident()))
        sync()

    monkeypatch.setattr(shard.engine, "step", noted_step)
    monkeypatch.setattr(shard.store.journal, "sync", noted_sync)
    return seen


def test_a_lone_caller_steps_and_syncs_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(SharedFiles()) as shard:
        make_topic(shard)
        seen = note_threads(shard, monkeypatch)

        def lone() -> int:
            assert put(shard, b"x").all_ok
            return threading.get_ident()

        me = elsewhere(lone)
        assert seen == [("step", me), ("sync", me)]


def test_the_main_thread_never_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    # A handler of signals may raise there, in the middle of a step.
    with serving(SharedFiles()) as shard:
        make_topic(shard)
        seen = note_threads(shard, monkeypatch)
        assert put(shard, b"x").all_ok
        assert len(seen) == 2
        assert threading.get_ident() not in dict(seen).values()


def test_who_comes_while_another_has_the_turn_is_served_after_it() -> None:
    with serving(SharedFiles()) as shard:
        make_topic(shard)
        with ThreadPoolExecutor(4) as pool:
            with held_up(shard):
                waiting = [pool.submit(put, shard, b"%d" % number) for number in range(4)]
                while shard.inbox_rows < 4:
                    threading.Event().wait(0.001)
            assert all(answer.result(WAIT_S).all_ok for answer in waiting)
        assert len(shown(shard)) == 4


def test_many_who_lead_at_once_are_all_answered_and_nothing_is_lost() -> None:
    files = SharedFiles()
    with serving(files) as shard:
        make_topic(shard)

        def many(thread: int) -> list[int]:
            return [put(shard, b"%d" % number).ids.tolist()[0] for number in range(200)]

        with ThreadPoolExecutor(8) as pool:
            ids = [number for part in pool.map(many, range(8)) for number in part]
        assert len(set(ids)) == 1600
        assert set(shown(shard)) == set(ids)
    with serving(files) as shard:
        assert set(shown(shard)) == set(ids)


def test_nobody_leads_for_a_while_after_turns_in_which_more_work_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, changed = Threads(), threading.Condition()
    work, turns, now = [1], [], [100.0]
    monkeypatch.setattr(threads.runtime, "monotonic", lambda: now[0])

    def step() -> bool:
        turns.append(work.pop())
        return True

    # Its own thread is not started: it would take what comes.
    driver = Driver(threads, "fasti-some", changed, lambda: 0.0 if work else None, step)

    def lead() -> bool:
        with changed:
            begun = driver.begin_to_lead()
        if begun:
            driver.lead()
        return begun

    work += [1, 1]
    # Some are left when the turn is over. Once is no crowd; twice, one soon after the other, is.
    assert elsewhere(lead)
    now[0] += 0.005
    assert elsewhere(lead)
    assert not elsewhere(lead)
    now[0] += 0.2
    assert elsewhere(lead)
    assert turns == [1, 1, 1]
    work.append(3)
    # That one was alone.
    assert elsewhere(lead)


def test_what_a_leader_plans_wakes_the_shards_own_thread_in_time() -> None:
    with serving(SharedFiles()) as shard:
        make_topic(shard)
        session = shard.open_session()
        session.lease("t", "c", 1)
        assert elsewhere(lambda: put(shard, b"soon", delay_us=20_000)).all_ok
        # Its own thread slept for longer, for nothing was planned.
        delivery = session.receive(WAIT_S / 2)
        assert delivery is not None
        assert delivery.payloads.column("payload").to_pylist() == [b"soon"]


def test_a_leader_whose_sync_fails_is_told_and_the_shard_recovers() -> None:
    files = SharedFiles()
    with serving(files) as shard:
        make_topic(shard)
        assert elsewhere(lambda: put(shard, b"before")).all_ok
        files.faulty = ".segment"
        files.fail("sync", 1)
        with pytest.raises(OutcomeUnknown):
            elsewhere(lambda: put(shard, b"lost"))
        assert elsewhere(lambda: put(shard, b"after")).all_ok
        assert shard.recoveries == 1
        assert sorted(shown(shard).values()) == [b"after", b"before"]


def test_a_leader_whose_step_raises_is_told_and_the_shard_recovers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(SharedFiles()) as shard:
        make_topic(shard)
        produce(shard, b"before")
        encode = shard.store.encode

        def fail_once(frames: Any) -> Any:
            monkeypatch.setattr(shard.store, "encode", encode)
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(shard.store, "encode", fail_once)
        # Which of a step's requests it was can't be told: it is decided again, by itself.
        assert elsewhere(lambda: put(shard, b"again")).all_ok
        assert shard.recoveries == 1
        assert sorted(shown(shard).values()) == [b"again", b"before"]
        assert shard.threads.troubles() == []


def test_a_command_that_always_raises_is_refused_to_its_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(SharedFiles()) as shard:
        make_topic(shard)
        step = type(shard.engine).step

        def fail(engine: Any, inputs: Sequence[Any], *times: int) -> Any:
            if any(isinstance(command, co.Produce) for command in inputs):
                raise ZeroDivisionError("a bug")
            return step(engine, inputs, *times)

        monkeypatch.setattr(type(shard.engine), "step", fail)
        with pytest.raises(InternalError):
            elsewhere(lambda: put(shard, b"bad"))
        monkeypatch.undo()
        assert elsewhere(lambda: put(shard, b"good")).all_ok


def test_what_escapes_from_a_turn_that_was_led_is_the_death_of_its_own_thread() -> None:
    threads, told, changed = Threads(), [], threading.Condition()
    work: list[str] = []

    def step() -> bool:
        raise ZeroDivisionError(work.pop())

    driver = Driver(
        threads, "fasti-some", changed, lambda: 0.0 if work else None, step, told.append
    )
    driver.start()

    def lead() -> None:
        with changed:
            work.append("bad")
            assert driver.begin_to_lead()
        driver.lead()

    elsewhere(lead)
    driver.wait()
    assert [str(error) for error in told] == ["bad"]
    with changed:
        work.append("more")
        assert not driver.begin_to_lead()
    driver.join()


def test_a_service_that_ended_while_it_was_led_has_ended() -> None:
    threads, changed, ends = Threads(), threading.Condition(), []
    driver = Driver(
        threads, "fasti-some", changed, lambda: 0.0 if ends else None, lambda: bool(ends.clear())
    )
    driver.start()

    def lead() -> None:
        with changed:
            ends.append(1)
            assert driver.begin_to_lead()
        driver.lead()

    elsewhere(lead)
    driver.wait()
    assert threads.deaths == {"fasti-some": 0}


class Service:
    """Work for a driver, which the test makes raise or stand still."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.work: list[str] = []
        self.threads = Threads()
        self.told: list[BaseException] = []

    def take(self) -> float | None:
        if "unreadable" in self.work:
            raise ZeroDivisionError(self.work.pop())
        return 0.0 if self.work else None

    def step(self) -> bool:
        raise ZeroDivisionError(self.work.pop(0))

    def driver(self, kind: type[Driver] = Driver) -> Driver:
        place = (self.threads, "fasti-some", self.changed)
        return kind(*place, self.take, self.step, self.told.append)

    def begin_to_lead(self, driver: Driver, *work: str) -> bool:
        with self.changed:
            self.work += work
            return driver.begin_to_lead()


def test_who_comes_while_a_service_dies_does_not_lead_it() -> None:
    service, dying, go_on = Service(), threading.Event(), threading.Event()

    class Dying(Driver):
        def _note_death(self, error: BaseException) -> float | None:
            dying.set()
            assert go_on.wait(WAIT_S)
            return super()._note_death(error)

    service.work = ["bad", "next"]
    driver = service.driver(Dying)
    driver.start()
    assert dying.wait(WAIT_S)
    try:
        assert not elsewhere(lambda: service.begin_to_lead(driver, "more"))
    finally:
        go_on.set()
    driver.join()
    assert [str(error) for error in service.told] == ["bad"]
    assert service.work == ["next", "more"]


def test_what_was_being_written_when_the_committer_died_is_not_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(SharedFiles()) as shard:
        make_topic(shard)
        committer, journal = shard.committer, shard.store.journal
        append, give_up = journal.append, committer._give_up
        appended: list[int] = []
        dying, go_on = threading.Event(), threading.Event()

        def note_append(frames: Any, **options: Any) -> None:
            appended.append(len(frames))
            append(frames, **options)

        def fail(work: Any) -> None:
            raise ZeroDivisionError("a bug")

        def give_up_later(error: Any) -> None:
            dying.set()
            assert go_on.wait(WAIT_S)
            give_up(error)

        monkeypatch.setattr(journal, "append", note_append)
        monkeypatch.setattr(committer, "_answer", fail)
        monkeypatch.setattr(committer, "_give_up", give_up_later)
        answer = shard.submit([co.Produce("t", Rows.of([b"x"]), co.When())])
        assert dying.wait(WAIT_S)
        try:
            elsewhere(committer.lead)
        finally:
            go_on.set()
        with pytest.raises(OutcomeUnknown):
            answer.result(WAIT_S)
        assert appended == [1]
        assert elsewhere(lambda: put(shard, b"after")).all_ok


def test_its_own_thread_never_sees_that_it_has_ended_without_seeing_why() -> None:
    class Eager(Driver):
        """Its own thread looks as soon as a leader says that it has ended."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "_ended" and value and threading.get_ident() != self._thread.ident:
                with self._changed:
                    self._changed.notify_all()
                self._thread.join(0.5)

    service = Service()
    driver = service.driver(Eager)
    driver.start()

    def lead() -> None:
        assert service.begin_to_lead(driver, "bad")
        driver.lead()

    elsewhere(lead)
    driver.join()
    assert [str(error) for error in service.told] == ["bad"]


@pytest.mark.parametrize("work", ["good", "unreadable"])
def test_a_service_that_can_not_say_what_there_is_to_do_dies_and_its_leader_goes_on(
    work: str,
) -> None:
    service = Service()

    def step() -> bool:
        service.work[:] = ["unreadable"]
        return True

    service.step = step  # type: ignore[method-assign]
    driver = service.driver()
    driver.start()

    def lead() -> None:
        if service.begin_to_lead(driver, work):
            assert work == "good"
            driver.lead()

    elsewhere(lead)
    driver.join()
    assert [str(error) for error in service.told] == ["unreadable"]


def test_a_leader_who_stands_still_is_seen_right_after_a_turn_of_the_own_thread() -> None:
    service, led, go_on = Service(), threading.Event(), threading.Event()
    own: list[int] = []

    class Slow(Driver):
        """Its own thread takes its time before it says that it is idle."""

        def idle(self) -> None:
            if threading.get_ident() in own:
                led.wait(0.5)
            super().idle()

    def step() -> bool:
        work = service.work.pop(0)
        if work == "own":
            own.append(threading.get_ident())
        elif work == "led":
            led.set()
            assert go_on.wait(WAIT_S)
        return work != "end"

    service.step = step  # type: ignore[method-assign]
    service.work = ["own"]
    driver = service.driver(Slow)
    driver.start()

    def lead() -> None:
        while not own or not service.begin_to_lead(driver, "led"):
            service.work.clear()
            threading.Event().wait(0.001)
        driver.lead()

    with ThreadPoolExecutor(1) as pool:
        leading = pool.submit(lead)
        try:
            assert led.wait(WAIT_S)
            # Its own thread waits again.
            while not service.changed._waiters:  # type: ignore[attr-defined]
                threading.Event().wait(0.001)
            assert driver.working
        finally:
            go_on.set()
        leading.result(WAIT_S)
    with service.changed:
        service.work.append("end")
        service.changed.notify()
    driver.join()


def test_its_own_thread_is_not_woken_for_what_it_wakes_up_for_by_itself() -> None:
    class Still(SystemRuntime):
        monotonic = staticmethod(lambda: 1000.0)

    class Counting(threading.Condition):
        notices = 0

        def notify_all(self) -> None:
            self.notices += 1
            super().notify_all()

    threads, changed = Threads(runtime=Still()), Counting()
    work: list[str] = []
    waits = iter([60.0, 59.99999, 50.0])
    driver = Driver(
        threads,
        "fasti-some",
        changed,
        lambda: 0.0 if work else next(waits, 50.0),
        lambda: work.pop() != "end",
    )

    def lead(piece: str = "led") -> None:
        with changed:
            work.append(piece)
            assert driver.begin_to_lead()
        driver.lead()

    driver.start()
    while not changed._waiters:  # type: ignore[attr-defined]
        threading.Event().wait(0.001)
    elsewhere(lead)
    # The same moment, but for what it took to find out.
    assert changed.notices == 0
    elsewhere(lead)
    assert changed.notices == 1
    elsewhere(lambda: lead("end"))
    driver.join()
