"""Every call of the SDK about messages, entries, groups, schedules and topics answers the same on one
shard and on four.

A story is told to a broker of each kind, in virtual time. Topics have as many partitions on both, so that
ids are the same too where keys decide them. What differs by nature (the names of feeds) is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.client.topics import Topic
from fasti.errors import FastiError
from fasti.testing import VirtualBroker

PARTITIONS = 5
SHARDS = 4
KEYS = [f"key-{number:02}" for number in range(40)]


class Served:
    """A broker in processes of its own, in real time."""

    @property
    def now(self) -> datetime:
        """The whole minute: forecasts begin at one."""
        return datetime.now(UTC).replace(second=0, microsecond=0)


Broker = VirtualBroker | Served
Answers = Iterator[Any]
Story = Callable[[Broker, fasti.Client], Answers]


def refused(call: Callable[[], Any]) -> Any:
    """What a call raises, as far as it is the same everywhere."""
    with pytest.raises(FastiError) as raised:
        call()
    details = {
        name: raised.value.details[name]
        for name in ("field", "topic")
        if name in raised.value.details
    }
    return raised.value.code, details


def send(client: fasti.Client, topic: str, keys: list[str], **columns: Any) -> Any:
    payloads = [key.encode() for key in keys]
    return client.producer(topic).send_batch(payloads, key=keys, **columns)


# The stories


def changing(broker: Broker, client: fasti.Client) -> Answers:
    client.create_topic("emails", partitions=PARTITIONS)
    yield send(client, "emails", KEYS, delay="1h")
    emails = client.messages("emails")
    yield emails.count()
    ids = emails.get(key=KEYS)["id"].to_pylist()
    yield ids
    yield emails.get(key="key-07")
    yield emails.get(key="nobody")
    yield emails.get(id=ids[3], payload=False)
    yield emails.get(key=[*KEYS[::-3], "nobody"])
    yield emails.get(id=ids[5:25], payload=False)
    yield emails.move(key="key-01", delay="3h")
    yield emails.move(key=KEYS[:9], delay=["2h"] * 9, version=[1] * 9)
    yield emails.move(id=ids[2:6], due=broker.now + timedelta(days=1), dry_run=True)
    yield emails.update(key=KEYS[10:14], payload=[b"1", b"2", b"3", b"4"])
    yield emails.update(id=ids[10], payload=b"other", headers={"a": "b"}, content_type="text/x")
    yield emails.cancel(key="key-20")
    yield emails.cancel(key="key-20")
    yield emails.cancel(key=["key-21", "key-22", "nobody", "key-21"])
    yield emails.cancel(id=[*ids[23:26], 17], version=1)
    yield emails.count()
    yield refused(lambda: emails.move(key="key-01"))
    yield refused(lambda: client.messages("nobody").cancel(key="a"))
    yield refused(lambda: client.messages("nobody").count())


def listing(broker: Broker, client: fasti.Client) -> Answers:
    client.create_topic("emails", partitions=PARTITIONS)
    send(client, "emails", KEYS, delay=["1h", "2h"] * 20)
    emails = client.messages("emails")
    yield emails.list()
    yield emails.list(payload=True, limit=7)
    after = None
    while len(page := emails.list(after=after, limit=6, columns=["id", "key"])):
        yield page
        after = page["id"][-1].as_py()
    yield emails.list(columns=["key"])
    yield emails.list(key_prefix="key-1", state="scheduled")
    yield emails.list(due_from=broker.now + timedelta(hours=2))
    yield emails.list(owner="nobody")
    yield pa.Table.from_batches(list(emails.scan()))
    yield emails.forecast("10m")
    yield emails.forecast("1h", start=broker.now, end=broker.now + timedelta(hours=6))
    odd: Any = "odd"
    yield refused(lambda: emails.list(state=odd))
    held, _ = client.transport.call("take_snapshot", {})
    emails.cancel(key=KEYS[:30])
    ticket = {"call": "list", "topic": "emails", "columns": ["key"]}
    ticket |= {name: held[name] for name in ("snapshot", "position")}
    yield pa.Table.from_batches(list(client.transport.read(ticket)))
    tickets = client.transport.plan(ticket)
    yield sum(batch.num_rows for each in tickets for batch in client.transport.read(each))
    yield client.transport.call("drop_snapshot", {"snapshot": held["snapshot"]})[0]
    yield refused(lambda: list(client.transport.read(ticket)))
    yield refused(lambda: emails.list(limit=-1))
    yield refused(lambda: client.messages("nobody").list())
    yield refused(lambda: emails.forecast("1s"))


def by_filter(broker: Broker, client: fasti.Client) -> Answers:
    client.create_topic("emails", partitions=PARTITIONS)
    send(client, "emails", KEYS, delay="1h")
    emails = client.messages("emails")
    yield emails.cancel_where(key_prefix="key-0", dry_run=True)
    yield emails.cancel_where(key_prefix="key-0")
    yield emails.move_where(by="30m", key_prefix="key-1")
    yield emails.move_where(delay="5m", key_prefix="key-2")
    yield emails.list(columns=["key", "due_us"])
    steps: list[tuple[int, int]] = []
    yield emails.cancel_where(everything=True, progress=lambda *at: steps.append(at))
    yield steps[0], steps[-1]
    yield emails.count()
    yield refused(lambda: emails.cancel_where())


def leased(broker: Broker, client: fasti.Client) -> Answers:
    client.create_topic("emails", partitions=PARTITIONS, lease="10m")
    send(client, "emails", KEYS)
    emails = client.messages("emails")
    with client.consumer("emails", name="worker", prefetch=len(KEYS)) as consumer:
        taken = [next(consumer) for _ in KEYS]
        yield sorted(message.key or "" for message in taken)
        yield emails.count()
        yield emails.cancel(key=KEYS[:3]).counts()
        (worker,) = client.consumers("emails")
        yield worker.consumer, worker.leases, worker.connected, worker.topic
        yield [each.consumer for each in client.consumers()]
        some = sorted(message.id for message in taken)[:4]
        yield emails.release(some)
        for message in taken[:20]:
            if message.id not in some:
                message.ack(wait=True)
        yield client.release_consumer("worker") > 0
    yield refused(lambda: client.consumers("nobody"))


def dead(broker: Broker, client: fasti.Client) -> Answers:
    for name in ("emails", "by-hand"):
        client.create_topic(name, partitions=PARTITIONS)
    send(client, "emails", KEYS)
    emails = client.messages("emails")
    with client.consumer("emails", prefetch=len(KEYS)) as consumer:
        taken = [next(consumer) for _ in KEYS]
        for message in taken:
            message.reject("odd" if (message.key or "").endswith(("1", "2")) else "even", wait=True)
    yield emails.dead_counts()
    yield emails.dead_counts(reason="odd")
    yield emails.dead(limit=5)
    yield emails.dead(reason="odd", payload=True)
    ids = emails.dead()["id"].to_pylist()
    yield ids
    yield emails.redrive(ids[0])
    yield emails.redrive([*ids[1:7], 99], delay="1h")
    yield emails.redrive(reason="odd", delay="1h")
    yield emails.redrive(ids[10:14], to="by-hand", delay="1h")
    yield client.messages("by-hand").list(payload=True, columns=["key", "headers", "payload"])
    yield emails.purge(ids[20])
    yield emails.purge(ids[21:24])
    yield emails.purge(reason="even")
    yield emails.count()


def entries(broker: Broker, client: fasti.Client) -> Answers:
    client.create_topic("profiles", kind="kv", partitions=PARTITIONS)
    profiles = client.kv("profiles")
    yield profiles.put("one", b"1")
    yield profiles.put("one", b"2", version=7)
    yield profiles.put_many(KEYS, [key.encode() for key in KEYS])
    yield profiles.put_many({"key-03": b"c", "äther": b"d", "zz": b"e"})
    yield profiles.put("one", b"x", clustering="b", ttl="1h")
    yield profiles.put("one", b"y", clustering="a")
    yield profiles.get("one")
    yield profiles.get("one", clustering="b")
    yield profiles.get("nobody")
    yield profiles.get_many([*KEYS[::-4], "nobody"])
    yield profiles.get_many(KEYS[:3], values=False)
    yield profiles.range()
    yield profiles.range(limit=5)
    yield profiles.range(prefix="key-1")
    yield profiles.range(key="one")
    yield profiles.range(start="key-30", end=("one", "b"), values=False)
    yield list(profiles.entries(prefix="key-2"))
    yield list(profiles)[-1]
    yield profiles.count()
    yield profiles.delete("one")
    yield profiles.delete("one")
    yield profiles.delete_many([*KEYS[:6], "nobody"], version=1)
    yield profiles.count()
    if isinstance(broker, VirtualBroker):
        broker.advance("2h")
        yield profiles.get("one", clustering="b")
    yield refused(lambda: profiles.put("", b""))
    yield refused(lambda: client.kv("nobody").get("a"))


def logs(broker: Broker, client: fasti.Client) -> Answers:
    client.create_topic("events", kind="log", partitions=PARTITIONS)
    send(client, "events", KEYS)
    groups, log = client.groups("events"), client.log("events")
    yield [(part.partition, part.earliest, part.end) for part in log.describe()]
    yield log.offset_at(broker.now - timedelta(days=1))
    yield log.offset_at(broker.now - timedelta(days=1), partition=2)
    yield groups.create("billing")
    yield groups.create("audit", start="latest", ordered=True)
    yield groups.create("half", start={0: 2, 3: 1})
    yield refused(lambda: groups.create("billing"))
    yield groups.list()
    yield groups.describe("half")
    yield groups.lag("billing")
    yield groups.reset("billing", to="latest")
    yield groups.reset("billing", to=1, partition=3)
    yield groups.reset("billing", to={1: 1, 4: 0})
    yield groups.reset("billing", to=broker.now - timedelta(days=1))
    with client.consumer("events", group="billing", prefetch=len(KEYS)) as consumer:
        for _ in KEYS:
            message = next(consumer)
            if message.key in KEYS[:25]:
                message.reject("bad" if message.key in KEYS[:5] else "worse", wait=True)
            else:
                message.ack(wait=True)
    yield groups.lag("billing")
    yield groups.dead_counts("billing")
    yield groups.dead("billing")
    yield groups.dead("billing", limit=7, payload=True)
    ids = groups.dead("billing")["id"].to_pylist()
    yield groups.dead("billing", after=ids[9], limit=3)
    yield groups.redrive("billing", ids[0])
    yield groups.redrive("billing", ids[1:6])
    yield groups.purge("billing", ids[6:9])
    yield groups.redrive("billing", reason="bad")
    yield groups.purge("billing")
    groups.delete("half")
    yield refused(lambda: groups.delete("half"))
    yield refused(lambda: groups.describe("half"))
    yield [(part.partition, part.earliest) for part in log.truncate(2, partition=1)]
    yield refused(lambda: log.truncate(2))
    yield [(part.partition, part.rows) for part in log.truncate("end")]
    yield refused(lambda: client.log("nobody").describe())
    yield refused(lambda: groups.create("x", start=7))
    yield refused(lambda: groups.reset("audit", to=0))


def schedules(broker: Broker, client: fasti.Client) -> Answers:
    client.create_topic("reports", partitions=PARTITIONS)
    client.create_topic("jobs", kind="cron")
    jobs = client.schedules("jobs")
    yield jobs.put("daily", target="reports", cron="@daily", payload=b"day")
    yield jobs.put("daily", target="reports", cron="@daily", payload=b"day")
    yield jobs.put("daily", target="reports", cron="@daily", payload=b"other", version=7)
    many = {f"job-{n}": {"target": "reports", "every": "1h"} for n in range(12)}
    yield jobs.put_many(many)
    yield [(each.name, each.version, each.next) for each in jobs.list()]
    yield jobs.get("daily").name
    yield refused(lambda: jobs.get("weekly"))
    yield jobs.preview("daily", 3)
    yield jobs.preview(cron="@hourly", count=2)
    yield jobs.pause("job-3")
    yield jobs.pause("job-3")
    yield jobs.get("job-3").paused
    yield jobs.resume("job-3")
    yield jobs.run_now("job-4").status
    yield refused(lambda: jobs.run_now("weekly"))
    if isinstance(broker, VirtualBroker):
        broker.advance("61m")
        yield sorted(client.messages("reports").list(payload=True)["headers"].to_pylist(), key=str)
        yield client.messages("reports").count()["ready"]
    references = client.references("reports")
    yield sorted(references.schedules), references.schedules_count
    jobs.delete("job-4")
    yield refused(lambda: jobs.delete("job-4"))
    yield len(jobs.list())
    yield client.definitions()


def topics(broker: Broker, client: fasti.Client) -> Answers:
    yield client.create_topic("emails", partitions=PARTITIONS, lease="20s")
    yield client.create_topic("emails", partitions=PARTITIONS, lease="20s")
    yield refused(lambda: client.create_topic("emails", partitions=PARTITIONS + 1))
    yield client.change_topic("emails", lease="40s")
    yield client.pause_topic("emails")
    yield client.pause_topic("emails")
    send(client, "emails", KEYS)
    yield client.topic("emails")
    yield client.resume_topic("emails")
    client.create_topic("audit", partitions=PARTITIONS)
    yield client.bindings("emails").add(">", "audit")
    yield client.bindings("emails").list()
    send(client, "emails", ["late-1", "late-2"])
    yield client.topics()
    yield client.references("audit")
    client.bindings("emails").remove(">", "audit")
    document = client.definitions()
    document["topics"]["more"] = {"kind": "log", "partitions": 2}
    yield client.define(document)
    client.delete_topic("more")
    yield refused(lambda: client.delete_topic("more"))
    yield refused(lambda: client.topic("more"))
    client.checkpoint()
    yield client.scrub()["findings"]
    yield client.health()["ready"]
    yield "fasti_" in client.metrics()
    yield client.accept_clock()
    yield client.clock_info().now


def transactions(broker: Broker, client: fasti.Client) -> Answers:
    for name in ("orders", "emails"):
        client.create_topic(name, partitions=PARTITIONS)
    client.create_topic("state", kind="kv", partitions=PARTITIONS)
    for key in KEYS[:8]:
        with client.transaction() as tx:
            tx.send("orders", b"order", key=key, delay="1h")
            tx.send("emails", b"mail", key=key, delay="2h")
            tx.put("state", key, b"ordered", version=0)
        yield tx.outcomes
    with client.transaction() as tx:
        tx.cancel("orders", key="key-03")
        tx.move("emails", key="key-03", delay="5m")
        tx.delete("state", "key-03")
    yield tx.outcomes

    def conflict() -> None:
        with client.transaction() as again:
            again.send("emails", b"mail", key="key-04")
            again.cancel("orders", key="key-04")

    yield refused(conflict)
    yield client.messages("orders").count(), client.messages("emails").count()
    with client.transaction() as tx:
        tx.send("orders", b"no key")
        tx.send("emails", b"nor here")
    yield [outcomes.all_ok for outcomes in tx.outcomes]


def stages(broker: Broker, client: fasti.Client) -> Answers:
    client.create_topic("emails", partitions=PARTITIONS)
    send(client, "emails", KEYS, stage="one")
    send(client, "emails", ["a", "b"], stage="two")
    yield client.messages("emails").count()
    yield client.publish("one")[0]
    yield client.drop_stage("two")
    yield client.messages("emails").count()["ready"]
    yield refused(lambda: client.publish("three"))


STORIES: list[Story] = [
    changing,
    listing,
    by_filter,
    leased,
    dead,
    entries,
    logs,
    schedules,
    topics,
    transactions,
    stages,
]


def plain(answer: Any) -> Any:
    """As values that can be compared, without what differs from broker to broker."""
    if isinstance(answer, pa.Table):
        return answer.to_pylist()
    if isinstance(answer, Topic):
        return asdict(replace(answer, position=None))
    if isinstance(answer, (list, tuple)):
        return [plain(each) for each in answer]
    if isinstance(answer, dict):
        return {name: plain(each) for name, each in answer.items()}
    if hasattr(answer, "to_pylist"):
        return answer.to_pylist()
    if isinstance(answer, fasti.Outcomes):
        return [outcome.to_dict() for outcome in answer]
    if isinstance(answer, fasti.Outcome):
        return answer.to_dict()
    if is_dataclass(answer) and not isinstance(answer, type):
        return {name: plain(getattr(answer, name)) for name in answer.__dataclass_fields__}
    return answer


def told(story: Story, shards: int) -> list[Any]:
    with VirtualBroker(shards=shards) as broker:
        return [plain(answer) for answer in story(broker, broker.client("me"))]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_one_shard_and_four_answer_alike(story: Story) -> None:
    one, four = told(story, 1), told(story, SHARDS)
    for number, (expected, found) in enumerate(zip(one, four, strict=True)):
        assert found == expected, f"answer {number} of {story.__name__}"


def masked(answer: Any, name: str = "") -> Any:
    """Without moments: real time goes on between two brokers."""
    if name.endswith("_us") or isinstance(answer, datetime):
        return None if answer is None else "a moment"
    if isinstance(answer, dict):
        return {name: masked(each, str(name)) for name, each in answer.items()}
    if isinstance(answer, list):
        return [masked(each) for each in answer]
    return answer


def told_in_processes(path: Path, **shape: Any) -> dict[str, list[Any]]:
    """All stories, one after the other, to a broker that is served."""
    found: dict[str, list[Any]] = {}
    with (
        BrokerProcess(path, **shape) as broker,
        fasti.connect(broker.address, owner="me") as client,
    ):
        for story in STORIES:
            answers = [plain(answer) for answer in story(Served(), client)]
            found[story.__name__] = [masked(answer) for answer in answers]
            for topic in client.topics():
                if not topic.name.startswith("_"):
                    client.delete_topic(topic.name)
    return found


def test_four_shards_in_two_processes_answer_as_one(tmp_path: Path) -> None:
    one = told_in_processes(tmp_path / "one")
    four = told_in_processes(tmp_path / "four", shards=SHARDS, processes=2)
    for name, expected in one.items():
        for number, (answer, found) in enumerate(zip(expected, four[name], strict=True)):
            assert found == answer, f"answer {number} of {name}"
