"""Pending messages listed by pages and by the beginning of their keys, cancelled and moved by filter."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.errors import FastiError, InvalidArgument
from fasti.testing import VirtualBroker
from tests.integration.serve_rig import SEGMENTS

FAR_US = 4_102_444_800_000_000
ROWS = 10_000


@pytest.fixture
def topic(client: fasti.Client, request: pytest.FixtureRequest) -> Iterator[str]:
    """Ten thousand messages in three partitions: every second has a key, `cart-...` or `user-...`."""
    name = str(request.node.name.split("[")[0])
    client.create_topic(name, partitions=3)
    words = ("cart", "user")
    keys = [f"{words[n % 4 // 2]}-{n}" if n % 2 else None for n in range(ROWS)]
    client.producer(name).send_batch(
        [b"%d" % n for n in range(ROWS)], key=keys, due=[FAR_US + n for n in range(ROWS)]
    )
    yield name
    client.delete_topic(name)


def paged(client: fasti.Client, topic: str, **filters: Any) -> list[dict[str, Any]]:
    """All pages of a list, one after the other."""
    found: list[dict[str, Any]] = []
    after = None
    while True:
        table = client.messages(topic).list(after=after, limit=700, **filters)
        found += table.to_pylist()
        if table.num_rows < 700:
            return found
        after = table["id"][-1].as_py()


def test_pages_have_each_message_once(client: fasti.Client, topic: str) -> None:
    ids = [row["id"] for row in paged(client, topic)]
    assert len(ids) == ROWS
    assert ids == sorted(set(ids))
    assert [row["id"] for row in paged(client, topic, payload=True)] == ids


def test_by_the_beginning_of_the_key(client: fasti.Client, topic: str) -> None:
    carts = paged(client, topic, key_prefix="cart-", columns=["id", "key"])
    assert {row["key"] for row in carts} == {f"cart-{n}" for n in range(1, ROWS, 4)}
    assert list(carts[0]) == ["id", "key"]
    some = paged(client, topic, key_prefix="cart-", due_to=FAR_US + 100, payload=True)
    assert {row["payload"] for row in some} == {b"%d" % n for n in range(1, 100, 4)}
    assert paged(client, topic, key_prefix="nobody-") == []
    # Nothing in it is a pattern.
    assert paged(client, topic, key_prefix="%") == []


def test_a_snapshot_has_the_same_by_prefix(client: fasti.Client, topic: str) -> None:
    header, _ = client.transport.call("take_snapshot", {})
    client.messages(topic).cancel(key="cart-1")
    ticket = {"call": "list", "topic": topic, "snapshot": header["snapshot"]}
    ticket |= {"columns": ["key"], "key_prefix": "cart-"}
    keys = [key for batch in client.transport.read(ticket) for key in batch["key"].to_pylist()]
    assert sorted(keys) == sorted(f"cart-{n}" for n in range(1, ROWS, 4))
    client.transport.call("drop_snapshot", {"snapshot": header["snapshot"]})


def test_cancel_by_prefix(client: fasti.Client, topic: str) -> None:
    messages = client.messages(topic)
    wanted = len(range(1, ROWS, 4))
    tried = messages.cancel_where(key_prefix="cart-", dry_run=True)
    assert (tried.counts(), len(tried)) == ({"ok": wanted}, wanted)
    assert messages.count()["scheduled"] == ROWS
    steps: list[tuple[int, int]] = []
    done = messages.cancel_where(key_prefix="cart-", progress=lambda *step: steps.append(step))
    assert (done.ok, done.all_ok, done.failed) == (wanted, True, [])
    assert steps[0] == (0, wanted)
    assert steps[-1] == (wanted, wanted)
    assert messages.count()["cancelled"] == wanted
    assert not paged(client, topic, key_prefix="cart-")
    assert len(messages.cancel_where(key_prefix="cart-")) == 0


def test_move_by_due_each_once(client: fasti.Client, topic: str) -> None:
    """Moved within the range of the filter: no message is met a second time."""
    messages = client.messages(topic)
    done = messages.move_where(by="1s", due_from=FAR_US, due_to=FAR_US + 10_000_000)
    assert done.counts() == {"ok": ROWS}
    dues = sorted(row["due_us"] for row in paged(client, topic))
    assert dues == [FAR_US + 1_000_000 + n for n in range(ROWS)]
    back = messages.move_where(by=timedelta(seconds=-1), everything=True)
    assert back.counts() == {"ok": ROWS}
    assert min(row["due_us"] for row in paged(client, topic)) == FAR_US
    assert messages.move_where(due=FAR_US, key_prefix="user-").ok == len(range(3, ROWS, 4))
    assert messages.list(due_to=FAR_US + 1, limit=None).num_rows == len(range(3, ROWS, 4)) + 1


def test_what_can_not_be_changed_is_counted(client: fasti.Client) -> None:
    client.create_topic("mixed")
    try:
        client.producer("mixed").send_batch([b"a", b"b"], key=["k-1", "k-2"])
        client.producer("mixed", owner="billing").send(b"c", key="k-3", delay="1h").result(60)
        client.producer("mixed").send(b"d", key="k-4", delay="1h").result(60)
        with client.consumer("mixed", prefetch=2) as consumer:
            dies, held = consumer.take(1, timeout="60s")[0], consumer.take(1, timeout="60s")[0]
            dies.reject("no use", wait=True)
            found = client.messages("mixed").cancel_where(key_prefix="k-")
            # The dead one is not pending; `fasti dead` is for those.
            assert found.counts() == {"leased": 1, "not_owner": 1, "ok": 1}
            assert {row["status"] for row in found.failed} == {"leased", "not_owner"}
            assert not found.all_ok
            held.ack(wait=True)
        # Naming the owner means those of that owner, in its name.
        assert client.messages("mixed").cancel_where(owner="billing").counts() == {"ok": 1}
        assert client.messages("mixed").cancel_where(everything=True).counts() == {}
    finally:
        client.delete_topic("mixed")


@pytest.mark.one_shard
def test_what_changes_in_between_answers_conflict(tmp_path: Any) -> None:
    """A message that somebody else changed after it was found stays as that one left it."""
    with fasti.connect(f"embedded:{tmp_path}") as client:
        client.create_topic("t")
        client.producer("t").send_batch([b""] * 3, key=["a", "b", "c"], delay=3600)
        service = client.transport.service  # type: ignore[attr-defined]
        command = service.command

        def moved_meanwhile(sent: Any) -> Any:
            if type(sent.bare).__name__ == "Cancel":
                service.command = command
                client.messages("t").move(key="b", delay="2h")
            return command(sent)

        service.command = moved_meanwhile
        found = client.messages("t").cancel_where(everything=True)
        assert found.counts() == {"ok": 2, "conflict": 1}
        assert client.messages("t").count()["scheduled"] == 1


def test_what_makes_no_sense_is_refused_and_changes_nothing(client: fasti.Client) -> None:
    client.create_topic("plain")
    client.create_topic("rows", kind="log")
    try:
        client.producer("plain").send(b"", delay="1h").result(60)
        messages = client.messages("plain")
        for call, given in (
            (messages.cancel_where, {}),
            (messages.cancel_where, {"key_prefix": ""}),
            (messages.cancel_where, {"state": "dead"}),
            (messages.cancel_where, {"key_prefix": "x" * 513}),
            (messages.move_where, {"everything": True}),
            (messages.move_where, {"everything": True, "by": "1h", "delay": "1h"}),
            (messages.move_where, {"everything": True, "by": "soon"}),
            (messages.list, {"after": -1}),
            (messages.list, {"columns": ["nothing"]}),
            (messages.list, {"key_prefix": "x" * 513}),
        ):
            with pytest.raises(InvalidArgument):
                call(**given)
        with pytest.raises(FastiError):
            client.messages("rows").cancel_where(everything=True)
        assert messages.count()["scheduled"] == 1
    finally:
        client.delete_topic("plain")
        client.delete_topic("rows")


def test_from_tasks(broker: BrokerProcess) -> None:
    async def story() -> None:
        async with fasti.aio.connect(broker.address) as client:
            await client.create_topic("tasks")
            keys = [f"{word}-{n}" for word in ("cart", "user") for n in range(5_000)]
            await client.producer("tasks").send_batch([b""] * len(keys), key=keys, delay=3600)
            messages = client.messages("tasks")
            assert (await messages.list(key_prefix="cart-", limit=3, after=0)).num_rows == 3
            batches = [b async for b in messages.scan(key_prefix="user-", columns=["key"])]
            assert sum(batch.num_rows for batch in batches) == 5_000
            assert (await messages.move_where(by="1h", key_prefix="user-")).ok == 5_000
            steps: list[int] = []
            done = await messages.cancel_where(
                everything=True, progress=lambda so_far, total: steps.append(so_far)
            )
            assert done.counts() == {"ok": 10_000}
            await client.delete_topic("tasks")
            assert steps[-1] == 10_000

    asyncio.run(story())


def test_a_broker_that_is_killed_in_the_middle(tmp_path: Path) -> None:
    """What was done is done, each message is cancelled or as it was, and again does the rest."""
    with BrokerProcess(tmp_path, settings=SEGMENTS) as killed:
        with fasti.connect(killed.address, timeout="10s") as client:
            client.create_topic("t")
            client.producer("t").send_batch([b""] * ROWS, due=[FAR_US] * ROWS)

            def kill(done: int, total: int) -> None:
                if done and killed.running:
                    assert done < total == ROWS
                    killed.kill()

            with pytest.raises(FastiError):
                client.messages("t").cancel_where(everything=True, progress=kill)
        killed.restart()
        with fasti.connect(killed.address, timeout="60s") as client:
            counts = client.messages("t").count()
            assert counts["cancelled"] >= 4_000
            assert counts["scheduled"] + counts["cancelled"] == ROWS
            rest = client.messages("t").cancel_where(everything=True)
            assert rest.counts() == {"ok": counts["scheduled"]}
            assert client.messages("t").count()["cancelled"] == ROWS


def test_in_virtual_time() -> None:
    with VirtualBroker() as broker:
        client = broker.client()
        client.create_topic("t")
        producer = client.producer("t")
        for number in range(10):
            producer.send(b"", key=f"cart-{number}", delay=f"{number + 1}h")
        producer.flush()
        now = broker.now
        emails = client.messages("t")
        assert emails.cancel_where(due_to=now + timedelta(hours=3, microseconds=1)).ok == 3
        assert emails.move_where(by="-3h", key_prefix="cart-").ok == 7
        broker.advance("1h")
        assert emails.count()["ready"] == 1
