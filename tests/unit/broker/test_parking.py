"""Services without work have no threads, and have one again as soon as there is some."""

from __future__ import annotations

import threading

import pytest

from fasti.broker import parking, threads
from fasti.broker.threads import Driver, Poller, Threads

WAIT_S = 60.0


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (parking, threads):
        monkeypatch.setattr(module, "PARK_AFTER_S", 0.01)


@pytest.fixture
def all_threads() -> Threads:
    return Threads(parks=True)


class Counting:
    """Does what it is told, and tells how often."""

    def __init__(self, all_threads: Threads) -> None:
        self.changed = all_threads.condition()
        self.wanted = self.done = 0
        self.stopping = False
        self.stepped = threading.Semaphore(0)
        self.driver = Driver(all_threads, "counting", self.changed, self.take, self.step)
        self.driver.start()

    def take(self) -> float | None:
        return 0.0 if self.wanted > self.done or self.stopping else None

    def step(self) -> bool:
        if self.stopping:
            return False
        self.done += 1
        self.stepped.release()
        return True

    def want(self) -> None:
        with self.changed:
            self.wanted += 1
            self.changed.notify()

    def stop(self) -> None:
        with self.changed:
            self.stopping = True
            self.changed.notify_all()
        self.driver.join()


def wait_parked(driver: Driver) -> None:
    """Its thread ends by itself."""
    driver._thread.join(WAIT_S)  # type: ignore[call-arg]
    assert not driver._thread.is_alive()  # type: ignore[attr-defined]


def test_an_idle_service_has_no_thread_and_gets_one_for_work(all_threads: Threads) -> None:
    service = Counting(all_threads)
    for _ in range(3):
        wait_parked(service.driver)
        service.want()
        assert service.stepped.acquire(timeout=WAIT_S)
    wait_parked(service.driver)
    assert all_threads.stalls() == {"counting": 0.0}, "it is watched all the while"
    service.stop()
    assert service.done == 3
    assert all_threads.stalls() == {}


def test_one_that_is_parked_can_be_ended_and_waited_for(all_threads: Threads) -> None:
    service = Counting(all_threads)
    ended = threading.Event()

    def wait() -> None:
        service.driver.wait()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    wait_parked(service.driver)
    assert not ended.is_set(), "its thread is gone, but it has not ended"
    service.stop()
    assert ended.wait(WAIT_S)


def test_an_alarm_brings_a_service_back_when_it_wanted(all_threads: Threads) -> None:
    polled = threading.Semaphore(0)
    ran: list[int] = []

    def poll() -> float:
        ran.append(threading.get_ident())
        polled.release()
        return 0.2

    poller = Poller(all_threads, "now and then", poll)
    all_threads.start()
    poller.start()
    for _ in range(4):
        assert polled.acquire(timeout=WAIT_S)
        wait_parked(poller)
    poller.stop()
    all_threads.stop()


def test_a_leader_needs_no_thread_of_the_service(all_threads: Threads) -> None:
    service = Counting(all_threads)
    wait_parked(service.driver)
    done: list[int] = []

    def lead() -> None:
        with service.changed:
            service.wanted += 1
            leads = service.driver.begin_to_lead()
        assert leads
        service.driver.lead()
        done.append(service.done)

    leader = threading.Thread(target=lead)
    leader.start()
    leader.join(WAIT_S)
    assert done == [1]
    assert not service.driver._thread.is_alive()  # type: ignore[attr-defined]
    service.stop()


def test_one_that_dies_is_run_again_and_parks_again(all_threads: Threads) -> None:
    calls = threading.Semaphore(0)
    raised: list[bool] = []

    def poll() -> float | None:
        if not raised:
            raised.append(True)
            raise RuntimeError("once")
        calls.release()
        return None

    poller = Poller(all_threads, "dies once", poll)
    poller.start()
    assert calls.acquire(timeout=WAIT_S)
    wait_parked(poller)
    poller.wake()
    assert calls.acquire(timeout=WAIT_S)
    assert all_threads.deaths["dies once"] == 1
    poller.stop()


def test_a_broker_with_one_shard_parks_nothing() -> None:
    assert not isinstance(Threads().condition(), parking.ParkingCondition)
