"""Calls on a broker of two processes: what moves, dies, forks or would need two shards."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.client.shards.schedules import home_of
from fasti.client.shards.transport import ShardedTransport
from fasti.core.layout import Layout
from fasti.errors import CrossShard, FastiError, NotFound
from tests.integration.test_forking import tell
from tests.shards.processes_rig import SETTINGS, kill_and_wait, pids

SHARDS = 4
KEYS = [f"key-{number}" for number in range(32)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("calls")
    with BrokerProcess(data, settings=SETTINGS, shards=SHARDS, processes=2) as made:
        yield made


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[fasti.Client]:
    with fasti.connect(broker.address) as made:
        yield made


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def fill(client: fasti.Client, topic: str) -> None:
    payloads = [key.encode() for key in KEYS]
    assert client.producer(topic).send_batch(payloads, key=KEYS, delay="1h").all_ok


def test_a_topic_that_was_made_again_elsewhere_is_found_there(
    broker: BrokerProcess, client: fasti.Client, topic: str
) -> None:
    client.create_topic(topic)
    fill(client, topic)
    before = client.transport.layout(topic)
    with fasti.connect(broker.address) as other:
        other.delete_topic(topic)
        other.create_topic(topic, partitions=SHARDS, home="elsewhere")
        fill(other, topic)
        assert other.transport.layout(topic) != before
    # By a layout that is no longer the topic's.
    assert client.transport.layout(topic) == before
    found = client.messages(topic).get(key=KEYS)
    assert found["payload"].to_pylist() == [key.encode() for key in KEYS]
    assert client.messages(topic).cancel(key=KEYS).all_ok


def test_what_would_need_two_shards_says_what_to_do(client: fasti.Client, topic: str) -> None:
    client.create_topic(topic)
    layout = client.transport.layout(topic)
    apart = next(key for key in KEYS if layout.shard_of_key(key) != layout.shard_of_key(KEYS[0]))
    tx = client.transaction()
    tx.send(topic, b"a", key=KEYS[0])
    tx.send(topic, b"b", key=apart)
    with pytest.raises(CrossShard, match="same home, partitions and width") as raised:
        tx.commit()
    assert list(raised.value.details["topics"]) == [topic]
    assert not any(client.messages(topic).count().values())


def test_topics_with_one_home_change_together_by_key(client: fasti.Client, topic: str) -> None:
    for name in (f"{topic}-orders", f"{topic}-mails"):
        client.create_topic(name, partitions=6, home="shop")
    for key in KEYS:
        with client.transaction() as tx:
            tx.send(f"{topic}-orders", b"", key=key)
            tx.send(f"{topic}-mails", b"", key=key)
    counts = [client.messages(f"{topic}-{name}").count()["ready"] for name in ("orders", "mails")]
    assert counts == [len(KEYS), len(KEYS)]


def test_a_schedule_that_would_change_its_shard_is_refused(
    client: fasti.Client, topic: str
) -> None:
    client.create_topic(f"{topic}-wide")
    client.create_topic(topic, kind="cron")
    schedules = client.schedules(topic)
    schedules.put("daily", target=f"{topic}-wide", cron="@daily")
    wide = client.transport.layout(f"{topic}-wide")
    here = home_of(wide, "daily")
    homes = (f"home-{number}" for number in range(100))
    home = next(each for each in homes if Layout(SHARDS, 1, each).all_shards != [here])
    client.create_topic(f"{topic}-narrow", partitions=1, home=home)
    with pytest.raises(CrossShard, match="delete it first"):
        schedules.put("daily", target=f"{topic}-narrow", cron="@daily")
    schedules.delete("daily")
    assert schedules.put("daily", target=f"{topic}-narrow", cron="@daily").ok
    assert [schedule.name for schedule in schedules.list()] == ["daily"]


def test_calls_go_on_when_a_process_was_killed(
    broker: BrokerProcess, client: fasti.Client, topic: str
) -> None:
    client.create_topic(topic)
    fill(client, topic)
    messages = client.messages(topic)
    assert messages.count()["scheduled"] == len(KEYS)
    for number in (1, 0):
        kill_and_wait(broker, number)
        # Reads wait until it is there again, within their time.
        assert messages.count()["scheduled"] == len(KEYS)
        assert messages.get(key=KEYS, payload=False)["status"].to_pylist() == ["ok"] * len(KEYS)
    pids(broker, 2)


def test_of_a_change_that_a_process_did_not_answer_each_row_is_done_or_named(
    broker: BrokerProcess, client: fasti.Client, topic: str
) -> None:
    client.create_topic(topic)
    fill(client, topic)
    messages = client.messages(topic)
    left = list(KEYS)
    kill_and_wait(broker, 1)
    until = time.monotonic() + 60
    while left:
        assert time.monotonic() < until
        problem = None
        try:
            assert set(messages.cancel(key=left).status) <= {"ok", "cancelled"}
        except FastiError as error:
            problem = error
        if problem is None:
            break
        assert problem.retryable
        if "rows_left" in problem.details:
            rows = problem.details["rows_left"]
            assert problem.details["rows_done"] == len(left) - len(rows)
            left = [left[row] for row in rows]
    assert messages.count()["cancelled"] == len(KEYS)
    pids(broker, 2)


def test_a_client_goes_on_in_a_forked_process(broker: BrokerProcess, tmp_path: Path) -> None:
    story = """
    client = fasti.connect(address)
    assert client.transport.shard_count == 4
    client.create_topic("forks")
    keys = [f"key-{n}" for n in range(40)]

    def work(number):
        sent = client.producer("forks").send_batch([b"x"] * 40, key=[f"{number}-{k}" for k in keys])
        assert sent.all_ok
        found = client.messages("forks").get(key=[f"{number}-{k}" for k in keys], payload=False)
        assert found["status"].to_pylist() == ["ok"] * 40

    work(0)
    ended_well([forked(work, number) for number in (1, 2)])
    work(3)
    assert client.messages("forks").count()["ready"] == 160
    client.close()
    """
    tell(story, broker.address, tmp_path)


def test_the_command_line_tells_where_a_topic_lies(
    broker: BrokerProcess, client: fasti.Client, topic: str
) -> None:
    client.create_topic(topic, partitions=6)
    command = [
        sys.executable,
        "-m",
        "fasti",
        "topics",
        "describe",
        topic,
        "--address",
        broker.address,
    ]
    shown = json.loads(
        subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout
    )
    layout = client.transport.layout(topic)
    assert shown["shards"] == {str(n): layout.own(n).tolist() for n in layout.all_shards}
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "partitions" in text


def test_a_client_says_what_it_is_connected_to(broker: BrokerProcess, client: fasti.Client) -> None:
    assert isinstance(client.transport, ShardedTransport)
    assert repr(client) == f"<Client of {broker.address}>"
    assert "4 shards" in repr(client.transport)
    assert client.health()["ready"]
    assert client.metrics().count("# TYPE fasti_build_info") == 1
    with pytest.raises(NotFound):
        client.topic("nobody")
