"""Every call against every topic kind, alone and sharing steps, and every field beyond its bounds.

All of it is generated from the broker's registries (hostile.py) and sent over the wire. A call ends
in an outcome or in a refusal that is meant for its caller, and never in a recovery: the engine is
never dropped, no command is refused for a fault of the broker's, and nothing surprises the log.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fasti.broker.calls.actions import ACTIONS
from fasti.broker.launch import BrokerProcess
from fasti.broker.metrics.counts import Metrics
from fasti.broker.placement import OneShard
from fasti.broker.service import Service
from fasti.broker.shard import Shard
from fasti.config import ShardSettings
from fasti.core.engine import Engine
from fasti.doors.flight import FlightDoor
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import LocalFiles
from tests.conformance.protocol_client import Client, Session, returned
from tests.integration import hostile
from tests.integration.hostile import (
    KINDS,
    LIMITS,
    PARTS,
    PEERS_ONLY,
    TOPICS,
    Call,
    Header,
    Parts,
    may_answer,
)
from tests.integration.serve_rig import SEGMENTS
from tests.integration.shard_rig import held_up

# They speak the protocol without the SDK, to one shard.
pytestmark = pytest.mark.one_shard

SETTINGS = ShardSettings(
    segment_bytes=1 << 18, memory_bytes=64 << 20, leases_max=4096, feed_bytes=0, limits=LIMITS
)
CALLERS = 8


class SharingShard(Shard):
    """A shard that begins a step when as many requests wait as there are callers, if that is soon."""

    callers = 1

    def _wait(self, wake: Any) -> Any:
        with self._wakeup:
            if self.callers > 1 and (self._urgent or self._bulk):
                waiting = lambda: len(self._urgent) + len(self._bulk)  # noqa: E731
                self._wakeup.wait_for(lambda: waiting() >= self.callers or self._closing, 0.01)
        return super()._wait(wake)


class Target:
    """A broker in this process, whose inside a test may look at, behind its real door."""

    def __init__(self, directory: Path) -> None:
        self.shard = SharingShard(FileStorage(LocalFiles(str(directory))), SETTINGS)
        self.metrics = Metrics()
        self.service = Service(OneShard(self.shard), self.metrics)
        self.door = FlightDoor(self.service)
        self.calls = hostile.learn(self.service)
        # Of steps with several inputs: what stood in them, and on which kind of topic.
        self.shared: set[tuple[str, str]] = set()
        self._watch(self.shard.engine)

    def _watch(self, engine: Engine) -> None:
        step = engine.step

        def watched(inputs: Any, now_us: int, tick: int) -> Any:
            if len(inputs) > 1:
                for command in inputs:
                    topic = engine.state.by_name.get(getattr(command, "topic", ""))
                    kind = topic.settings.kind if topic is not None else hostile.MISSING
                    self.shared.add((type(command).__name__, kind))
            return step(inputs, now_us, tick)

        engine.step = watched  # type: ignore[method-assign]

    def client(self) -> Client:
        return Client(f"127.0.0.1:{self.door.port}")

    @contextmanager
    def shared_steps(self) -> Iterator[None]:
        self.shard.callers = CALLERS
        try:
            yield
        finally:
            self.shard.callers = 1

    def close(self) -> None:
        self.service.begin_stopping()
        self.door.stop()
        self.service.close()
        self.shard.close(checkpoint=False)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    made = Target(tmp_path_factory.mktemp("hostile"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def client(target: Target, caplog: pytest.LogCaptureFixture) -> Iterator[Client]:
    """Somebody who means no good; what they may not bring about is looked at in the end."""
    with target.client() as made, caplog.at_level(logging.WARNING, "fasti"):
        hostile.drop_topics(made)
        hostile.make_topics(made)
        yield made
        assert made.call("health")["state"] == "serving"
    assert target.shard.recoveries == 0
    assert target.shard.faults.counts() == {}
    assert [line.getMessage() for line in caplog.records] == []


def attack(
    client: Client, call: Call, header: Header, parts: Parts, metadata: Header | None = None
) -> str:
    code = hostile.send(client, call, header, parts, metadata or {})
    assert may_answer(call.name, code), (call.way, call.name, header, parts, metadata, code)
    return code


def part_choices(call: Call) -> list[Parts]:
    if call.way == "put":
        return [[batch] for batch in hostile.MESSAGES]
    return list(PARTS.values()) if call.takes_parts else [[]]


@pytest.mark.parametrize("name", sorted(ACTIONS.keys() - PEERS_ONLY))
def test_an_action_on_topics_of_every_kind(target: Target, client: Client, name: str) -> None:
    [call] = [call for call in target.calls if (call.way, call.name) == ("action", name)]
    if name in ("publish", "drop_stage"):
        client.send("timeline", hostile.MESSAGES[0], metadata={"stage": "stage"})
    elif name == "unbind":
        client.call("bind", {"topic": "timeline", "pattern": "a.*", "target": "priority"})
    codes = set()
    for topic in TOPICS:
        for parts in part_choices(call):
            codes.add(attack(client, call, hostile.good_header(call, topic), parts))
            if name == "delete_topic":
                hostile.make_topics(client)
    # Nothing is proven by a call that never gets anywhere. These need more than one call can bring; this broker is
    # in no cluster.
    more = ("publish_batch", "drop_snapshot", "cluster", "drain")
    assert "ok" in codes or name in more, codes


@pytest.mark.parametrize("way", ["call", "put", "exchange", "read", "plan"])
def test_streams_on_topics_of_every_kind(target: Target, client: Client, way: str) -> None:
    rng = random.Random(way)
    for call in [call for call in target.calls if call.way == way]:
        for topic in TOPICS:
            header = hostile.good_header(call, topic)
            for parts in part_choices(call):
                attack(client, call, header, parts)
            if way == "put":
                for metadata in hostile.METADATA:
                    attack(client, call, header, [hostile.MESSAGES[0]], metadata)
            if call.name == "consume":
                for _ in range(30):
                    said, parts = hostile.session_words(rng)
                    attack(client, call, header, parts, said)


@pytest.mark.parametrize("way", ["action", "call", "put", "exchange", "read", "plan"])
def test_fields_at_and_beyond_their_bounds(target: Target, client: Client, way: str) -> None:
    rng = random.Random(way)
    for call in [call for call in target.calls if call.way == way]:
        parts = next((each for each in part_choices(call) if each), [])
        for name, wanted in call.fields.items():
            for value in rng.sample(hostile.bad_values(wanted), 6):
                header = hostile.good_header(call, rng.choice(TOPICS)) | {name: value}
                attack(client, call, header, parts)


def storm(target: Target, seed: int, calls: int) -> None:
    """Many callers at once, whose requests share steps."""
    problems: list[Any] = []

    def call_on(number: int) -> None:
        rng = random.Random(f"{seed}-{number}")
        with target.client() as client:
            for _ in range(calls):
                if rng.random() < 0.02:
                    hostile.make_topics(client)
                case = hostile.anything(rng, target.calls)
                code = hostile.send(client, *case)
                if not may_answer(case[0].name, code):
                    problems.append((code, case))

    with target.shared_steps(), ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(call_on, range(CALLERS)))
    assert problems == []


def test_calls_that_share_steps(target: Target, client: Client) -> None:
    target.shared.clear()
    storm(target, seed=1, calls=100)
    assert len(target.shared) > 20


def test_consumers_of_every_kind_share_a_step(target: Target, client: Client) -> None:
    """The request that threw the engine down: a consumer of a cron topic beside others."""
    sessions = {
        (kind, group): client.consume(kind, "c", group=group)
        for kind in KINDS
        for group in ("", "g")
    }
    try:
        codes = _ask_in_one_step(target, sessions)
    finally:
        for session in sessions.values():
            session.finish()
    assert {name for name, _ in target.shared} >= {"Lease", "Ack"}
    assert {kind for name, kind in target.shared if name == "Lease"} == set(KINDS)
    for (kind, group), code in codes.items():
        fits = kind in ("timeline", "priority") and not group
        fits |= (kind, group) == ("log", "g")
        assert code == (None if fits else "invalid_argument"), (kind, group)


def _ask_in_one_step(target: Target, sessions: dict[Any, Session]) -> dict[Any, str | None]:
    """What each is told who asks for messages, and acks none, in a step with all others."""
    for session in sessions.values():
        session.ask("clock")
    shard = target.shard
    target.shared.clear()
    nothing = returned([], [], due_us=[])
    with held_up(shard):
        for session in sessions.values():
            session.write({"op": "credit", "request": 1, "count": 3})
            session.write({"op": "ack", "request": 2}, nothing)
            session.write({"op": "ack", "request": 3}, nothing)
        until = time.monotonic() + 60
        while len(shard.sequencer._urgent) < 3 * len(sessions):
            assert time.monotonic() < until
            time.sleep(0.001)
    return {place: _told(session) for place, session in sessions.items()}


def _told(session: Session) -> str | None:
    """The refusal of the credit, if it was refused; the ack is answered behind it."""
    code = None
    for chunk in session:
        if chunk.metadata.get("request") == 1:
            code = chunk.metadata["error"]["code"]
        elif chunk.metadata.get("request") == 3:
            break
    return code


# A broker's process, for a while


class Usage(NamedTuple):
    """What a process takes of its machine."""

    resident_bytes: int
    threads: int
    files: int
    disk_bytes: int


def usage(broker: BrokerProcess) -> Usage:
    place = Path(f"/proc/{broker.pid}")
    said = dict(
        line.split(":", 1) for line in (place / "status").read_text().splitlines() if ":" in line
    )
    disk = sum(each.stat().st_size for each in broker.data.rglob("*") if each.is_file())
    resident = int(said["VmRSS"].split()[0]) << 10
    return Usage(resident, int(said["Threads"]), len(list((place / "fd").iterdir())), disk)


def metric(client: Client, name: str) -> float:
    """The sum over all its series."""
    lines = client.call("metrics")["text"].splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


@contextmanager
def attacked(directory: Path) -> Iterator[tuple[BrokerProcess, Client]]:
    settings = {
        **SEGMENTS,
        "memory": "64MiB",
        "checkpoint_size": "4MiB",
        "feed_size": "8MiB",
        "limits.payload_max": LIMITS.payload_bytes_max,
        "limits.headers_max": LIMITS.headers_bytes_max,
        "limits.key_max": LIMITS.key_bytes_max,
        "limits.subject_max": LIMITS.subject_bytes_max,
        "limits.batch_max": LIMITS.batch_bytes_max,
        "limits.reason_max": LIMITS.reason_bytes_max,
        "limits.name_max": LIMITS.name_bytes_max,
        "limits.schedule_max": LIMITS.schedule_bytes_max,
        **{f"limits.{name}": getattr(LIMITS, name) for name in SAME_NAMES},
    }
    with BrokerProcess(directory, settings=settings) as broker:
        with Client(f"{broker.host}:{broker.port}") as client:
            yield broker, client


SAME_NAMES = (
    *("batch_rows_max", "topics_max", "consumers_waiting_max", "snapshots_max", "stages_max"),
    *("sinks_max", "bindings_max", "groups_max", "schedules_max", "watchers_max"),
)


def rage(broker: BrokerProcess, client: Client, calls: list[Call], seconds: float) -> Counter[str]:
    """Anything and everything, by one client."""
    rng = random.Random(7)
    codes: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if rng.random() < 0.01:
            hostile.drop_topics(client)
        if rng.random() < 0.05:
            hostile.make_topics(client)
        case = hostile.anything(rng, calls)
        code = hostile.send(client, *case)
        assert may_answer(case[0].name, code), (code, case)
        codes[code] += 1
    return codes


def check_unharmed(broker: BrokerProcess, client: Client, before: Usage) -> None:
    after = usage(broker)
    assert metric(client, "fasti_recoveries_total") == 0
    assert metric(client, "fasti_faults_total") == 0
    assert after.resident_bytes < before.resident_bytes + (192 << 20)
    assert after.threads <= before.threads + 64
    assert after.files <= before.files + 256
    # Four segments and their recycled ones, a checkpoint's worth of journal, the feed and blocks.
    assert after.disk_bytes < 64 << 20
    told = broker.log()
    assert "Traceback" not in told, told[-3000:]
    assert "fasti.broker.faults" not in told, told[-3000:]


def test_a_broker_is_attacked_for_a_moment(tmp_path: Path, target: Target) -> None:
    with attacked(tmp_path) as (broker, client):
        hostile.make_topics(client)
        before = usage(broker)
        rage(broker, client, target.calls, seconds=1)
        check_unharmed(broker, client, before)


@pytest.mark.long
def test_a_broker_is_attacked_for_a_minute(tmp_path: Path, target: Target) -> None:
    with attacked(tmp_path) as (broker, client):
        hostile.make_topics(client)
        before = usage(broker)
        codes = rage(broker, client, target.calls, seconds=60)
        check_unharmed(broker, client, before)
        assert codes["ok"] > 100
        assert codes["invalid_argument"] > 100


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 14))
def test_many_calls_that_share_steps(target: Target, client: Client, seed: int) -> None:
    storm(target, seed, calls=1_000)


@pytest.mark.long
@pytest.mark.parametrize("way", ["action", "call", "put", "exchange", "read", "plan"])
def test_all_fields_at_and_beyond_all_bounds(target: Target, client: Client, way: str) -> None:
    for call in [call for call in target.calls if call.way == way]:
        parts = next((each for each in part_choices(call) if each), [])
        for name, wanted in call.fields.items():
            for number, value in enumerate(hostile.bad_values(wanted)):
                header = hostile.good_header(call, TOPICS[number % len(TOPICS)]) | {name: value}
                attack(client, call, header, parts)
