"""Calls are cut by shard and merged: rows in their order, errors that say what is done and what is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.broker.calls.actions import ACTIONS
from fasti.client.outcomes import Outcomes
from fasti.client.shards.table import TABLE
from fasti.core.replies import Reply
from fasti.errors import CrossShard, InvalidArgument, NotFound, Unavailable, WrongShard
from fasti.model import TopicSettings, make_id
from fasti.protocol import outcomes
from tests.unit.client.shards.fake_shards import Answer, FakeShards, Header

FOUR = TopicSettings(partitions=4)


def ids(*places: tuple[int, int]) -> pa.RecordBatch:
    numbers = [make_id(partition, sequence) for partition, sequence in places]
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], ["id"])


def echo(shard: int, header: Header, parts: list[Any]) -> Answer:
    """Outcomes that show where each row was: its version is the shard."""
    column = parts[0].column("id").to_numpy(zero_copy_only=False)
    count = len(column)
    status = np.zeros(count, dtype=np.uint8)
    reply = Reply(status, column, np.full(count, shard, dtype=np.int64))
    return outcomes.encode(reply), []


def test_every_action_of_the_broker_has_a_route() -> None:
    assert set(ACTIONS) == set(TABLE)


def test_rows_go_to_their_shards_and_come_back_in_order() -> None:
    fakes = FakeShards(4, topic=FOUR)
    fakes.answers["cancel"] = echo
    batch = ids((3, 1), (0, 1), (3, 2), (1, 1), (0, 2))
    reply, _ = fakes.transport.call("cancel", {"topic": "topic"}, [batch])
    found = Outcomes.of_reply(reply)
    assert found.ids.tolist() == batch.column("id").to_pylist()
    expected = [fakes.layout("topic").shard_of(partition) for partition in (3, 0, 3, 1, 0)]
    assert found.versions.tolist() == expected
    assert len(fakes.asked()) == 3


def test_rows_of_one_shard_are_sent_as_they_are() -> None:
    fakes = FakeShards(4, topic=FOUR)
    fakes.answers["cancel"] = echo
    batch = ids((2, 1), (2, 2))
    fakes.transport.call("cancel", {"topic": "topic"}, [batch])
    (((_, _, parts),),) = fakes.asked().values()
    assert parts[0] is batch


def test_moments_names_and_reasons_stay_with_their_rows() -> None:
    fakes = FakeShards(2, topic=TopicSettings(partitions=2))

    def leased(shard: int, header: Header, parts: list[Any]) -> Answer:
        column = parts[0].column("id").to_numpy()
        count = len(column)
        status = np.full(count, 2, dtype=np.uint8)
        by = {count - 1: f"of {shard}"}
        reply = Reply(status, column, column, np.full(count, 10 + shard), by)
        return outcomes.encode(reply) | {"reasons": {"0": f"why {shard}"}}, []

    fakes.answers["ack"] = leased
    batch = ids((0, 1), (1, 1), (0, 2), (1, 2))
    reply, _ = fakes.transport.call("ack", {"topic": "topic"}, [batch])
    layout = fakes.layout("topic")
    zero, one = layout.shard_of(0), layout.shard_of(1)
    found = [outcome.to_dict() for outcome in Outcomes.of_reply(reply)]
    assert [row.get("by") for row in found] == [None, None, f"of {zero}", f"of {one}"]
    assert [row["at_us"] for row in found] == [10 + zero, 10 + one, 10 + zero, 10 + one]
    assert [row.get("reason") for row in found] == [f"why {zero}", f"why {one}", None, None]


def test_a_shard_that_does_not_answer_leaves_no_row_that_looks_done() -> None:
    fakes = FakeShards(4, topic=FOUR)
    lost = fakes.layout("topic").shard_of(1)

    def answer(shard: int, header: Header, parts: list[Any]) -> Answer:
        if shard == lost:
            raise Unavailable("gone")
        return echo(shard, header, parts)

    fakes.answers["move"] = answer
    batch = ids((0, 1), (1, 1), (2, 1), (1, 2))
    with pytest.raises(
        Unavailable, match=f"2 of 4 rows were carried out; those on shard {lost}"
    ) as e:
        fakes.transport.call("move", {"topic": "topic"}, [batch])
    assert e.value.details["rows_left"] == [1, 3]
    assert e.value.details["rows_done"] == 2
    assert e.value.details["shard"] == lost
    with pytest.raises(Unavailable, match=f"shard {lost}: gone"):
        fakes.transport.call("move", {"topic": "topic"}, [ids((1, 1))])


def test_a_read_without_one_shard_names_it() -> None:
    fakes = FakeShards(4, topic=FOUR)

    def answer(shard: int, header: Header, parts: list[Any]) -> Answer:
        if shard == 2:
            raise Unavailable("gone")
        return {"counts": {"ready": 1}, "shard": f"{shard}.x", "position": 5}, []

    fakes.answers["count"] = answer
    with pytest.raises(Unavailable, match="shard 2: gone") as raised:
        fakes.transport.call("count", {"topic": "topic"})
    assert raised.value.details["shard"] == 2


def test_counts_are_summed_and_positions_are_a_map() -> None:
    fakes = FakeShards(4, topic=FOUR, narrow=TopicSettings(partitions=4, width=2))
    fakes.answers["count"] = lambda shard, header, parts: (
        {"counts": {"ready": shard, "dead": 1}, "shard": f"{shard}.x", "position": 5 + shard},
        [],
    )
    header, _ = fakes.transport.call("count", {"topic": "topic"})
    assert header["counts"] == {"ready": 6, "dead": 4}
    assert header["position"] == {f"{n}.x": 5 + n for n in range(4)}
    header, _ = fakes.transport.call("count", {"topic": "narrow"})
    assert header["counts"]["dead"] == 2


def test_rows_sent_by_an_old_layout_are_sent_again_where_they_belong() -> None:
    fakes = FakeShards(4, topic=FOUR)

    def answer(shard: int, header: Header, parts: list[Any]) -> Answer:
        layout = fakes.layout("topic")
        if (layout.shards_of_ids(parts[0].column("id").to_numpy()) != shard).any():
            raise WrongShard("not here", details={"topic": "topic"})
        return echo(shard, header, parts)

    fakes.answers["cancel"] = answer
    fakes.transport.call("cancel", {"topic": "topic"}, [ids((0, 1))])
    # Made again, with another home: every row but some lies elsewhere now.
    fakes.topics["topic"] = TopicSettings(partitions=4, home="elsewhere")
    assert fakes.layout("topic").by_partition.tolist() != [0, 1, 2, 3]
    batch = ids((0, 1), (1, 1), (2, 1), (3, 1), (0, 2))
    reply, _ = fakes.transport.call("cancel", {"topic": "topic"}, [batch])
    found = Outcomes.of_reply(reply)
    assert found.ids.tolist() == batch.column("id").to_pylist()
    expected = fakes.layout("topic").shards_of_ids(batch.column("id").to_numpy())
    assert found.versions.tolist() == expected.tolist()


def test_wrong_shard_by_the_right_layout_is_told() -> None:
    fakes = FakeShards(4, topic=FOUR)

    def answer(shard: int, header: Header, parts: list[Any]) -> Answer:
        raise WrongShard("not here", details={"topic": "topic"})

    fakes.answers["cancel"] = answer
    with pytest.raises(WrongShard):
        fakes.transport.call("cancel", {"topic": "topic"}, [ids((0, 1), (1, 1))])


def test_a_walk_goes_on_where_each_shard_was() -> None:
    fakes = FakeShards(2, topic=TopicSettings(partitions=2))
    left = {0: 2, 1: 1}

    def answer(shard: int, header: Header, parts: list[Any]) -> Answer:
        left[shard] -= 1
        after = header.get("after_id", 0) + 10 * (shard + 1)
        more = after if left[shard] else 0
        failed = [{"id": after, "status": "leased"}]
        return {"looked": 1, "outcomes": {"ok": 3}, "failed": failed, "next_after_id": more}, []

    fakes.answers["cancel_where"] = answer
    first, _ = fakes.transport.call("cancel_where", {"topic": "topic", "after_id": 0})
    assert first["outcomes"] == {"ok": 6}
    assert first["next_after_id"] == {0: 10}
    again = {"topic": "topic", "after_id": first["next_after_id"]}
    second, _ = fakes.transport.call("cancel_where", again)
    assert second["next_after_id"] == 0
    assert second["failed"] == [{"id": 20, "status": "leased"}]


def test_dead_rows_come_in_pages_by_id_as_far_as_every_shard_has_looked() -> None:
    fakes = FakeShards(2, log=TopicSettings(kind="log", partitions=2))
    rows = {0: [1, 4, 6, 9], 1: [2, 3, 8]}

    def answer(shard: int, header: Header, parts: list[Any]) -> Answer:
        fitting = [row for row in rows[shard] if row > header["after_id"]]
        page = fitting[: header["limit"]]
        more = page[-1] if len(fitting) > len(page) else 0
        return {"next_after_id": more}, [pa.table({"id": pa.array(page, pa.int64())})]

    fakes.answers["dead"] = answer
    found: list[int] = []
    after: int = 0
    while True:
        header = {"topic": "log", "group": "g", "after_id": after, "limit": 2}
        reply, parts = fakes.transport.call("dead", header)
        assert parts[0].num_rows <= 2
        found += parts[0].column("id").to_pylist()
        after = reply["next_after_id"]
        if not after:
            break
    assert found == [1, 2, 3, 4, 6, 8, 9]


def test_a_group_that_was_made_on_some_shards_is_made_on_the_others() -> None:
    from fasti.errors import AlreadyExists

    fakes = FakeShards(2, log=TopicSettings(kind="log", partitions=2))
    layout = fakes.layout("log")
    exists = {layout.shard_of(0)}

    def answer(shard: int, header: Header, parts: list[Any]) -> Answer:
        if shard in exists:
            raise AlreadyExists("it is there")
        exists.add(shard)
        number = int(layout.own(shard)[0])
        return {
            "group": {"group": "g", "ordered": False, "partitions": [{"partition": number}]}
        }, []

    def described(shard: int, header: Header, parts: list[Any]) -> Answer:
        partitions = [{"partition": int(number)} for number in layout.own(shard)]
        return {"groups": [{"group": "g", "ordered": False, "partitions": partitions}]}, []

    fakes.answers |= {"create_group": answer, "groups": described}
    made, _ = fakes.transport.call("create_group", {"topic": "log", "group": "g"})
    assert [row["partition"] for row in made["group"]["partitions"]] == [0, 1]
    with pytest.raises(AlreadyExists):
        fakes.transport.call("create_group", {"topic": "log", "group": "g"})


def test_offsets_go_to_the_shards_of_their_partitions() -> None:
    fakes = FakeShards(2, log=TopicSettings(kind="log", partitions=4))
    layout = fakes.layout("log")

    def answer(shard: int, header: Header, parts: list[Any]) -> Answer:
        partitions = [{"partition": n} for n in layout.own(shard).tolist()]
        return {"group": {"group": "g", "partitions": partitions}}, []

    fakes.answers["create_group"] = answer
    header = {"topic": "log", "group": "g", "offsets": {"0": 5, "1": 6, "2": 7}}
    made, _ = fakes.transport.call("create_group", header)
    assert [row["partition"] for row in made["group"]["partitions"]] == [0, 1, 2, 3]
    given = {number: asked[0][1]["offsets"] for number, asked in fakes.asked().items()}
    assert given[layout.shard_of(0)] == {"0": 5, "2": 7}
    assert given[layout.shard_of(1)] == {"1": 6}
    with pytest.raises(InvalidArgument, match="one partition"):
        fakes.transport.call("create_group", {"topic": "log", "group": "g", "offset": 3})


def key_of(fakes: FakeShards, topic: str, shard: int) -> str:
    layout = fakes.layout(topic)
    return next(key for key in map(str, range(1000)) if layout.shard_of_key(key) == shard)


def keyed(*keys: str | None) -> pa.RecordBatch:
    payloads = pa.array([b""] * len(keys))
    return pa.RecordBatch.from_arrays([payloads, pa.array(keys, pa.string())], ["payload", "key"])


def produce(topic: str, **more: Any) -> Header:
    return {"op": "produce", "topic": topic, **more}


def test_a_transaction_goes_to_the_one_shard_of_its_rows() -> None:
    fakes = FakeShards(4, orders=FOUR, emails=FOUR)
    fakes.answers["transaction"] = lambda shard, header, parts: ({"committed": True}, [])
    key = key_of(fakes, "orders", 2)
    commands = [produce("orders"), produce("emails"), {"op": "cancel", "topic": "orders"}]
    parts = [keyed(key, None), keyed(None), ids((int(fakes.layout("orders").own(2)[0]), 7))]
    fakes.transport.call("transaction", {"commands": commands}, parts)
    assert list(fakes.asked()) == [2]


def test_rows_without_a_key_alone_take_turns_over_the_shards_that_have_all_topics() -> None:
    narrow = TopicSettings(partitions=2, width=2)
    fakes = FakeShards(4, orders=FOUR, emails=narrow)
    fakes.answers["transaction"] = lambda shard, header, parts: ({"committed": True}, [])
    header = {"commands": [produce("orders"), produce("emails")]}
    for _ in range(4):
        fakes.transport.call("transaction", header, [keyed(None), keyed(None)])
    assert sorted(fakes.asked()) == fakes.layout("emails").all_shards


@pytest.mark.parametrize("rows", ["two keys", "key and partition", "free rows that have no place"])
def test_a_transaction_over_two_shards_is_refused_with_the_remedy(rows: str) -> None:
    fakes = FakeShards(4, orders=FOUR, emails=TopicSettings(home="mail"))
    mail = fakes.layout("emails").all_shards[0]
    other = key_of(fakes, "orders", (mail + 1) % 4)
    commands, parts = {
        "two keys": ([produce("orders"), produce("emails")], [keyed(other), keyed("any")]),
        "key and partition": (
            [produce("orders"), produce("emails", partition=0)],
            [keyed(other), keyed(None)],
        ),
        "free rows that have no place": (
            [produce("orders"), produce("emails")],
            [keyed(other), keyed(None)],
        ),
    }[rows]
    with pytest.raises(CrossShard, match="same home, partitions and width") as raised:
        fakes.transport.call("transaction", {"commands": commands}, parts)
    assert "'orders'" in raised.value.message
    assert "'emails'" in raised.value.message
    assert not fakes.asked()


def schedules_of(known: dict[int, list[str]]) -> Any:
    def answer(shard: int, header: Header, parts: list[Any]) -> Answer:
        names = sorted(known.get(shard, []))
        if header.get("name"):
            if header["name"] not in names:
                raise NotFound("there is no such schedule")
            names = [header["name"]]
        rows = [{"name": name} for name in names]
        return {"schedules": rows, "next_after_number": None}, []

    return answer


def test_a_schedule_is_found_wherever_it_is() -> None:
    fakes = FakeShards(4, jobs=TopicSettings(kind="cron"))
    fakes.answers["schedules"] = schedules_of({2: ["daily"], 3: ["hourly"]})
    fakes.answers["pause_schedule"] = lambda shard, header, parts: ({"changed": shard == 2}, [])
    header = {"topic": "jobs", "name": "daily", "paused": True}
    assert fakes.transport.call("pause_schedule", header)[0] == {"changed": True}
    found, _ = fakes.transport.call("schedules", {"topic": "jobs"})
    assert [row["name"] for row in found["schedules"]] == ["daily", "hourly"]
    found, _ = fakes.transport.call("schedules", {"topic": "jobs", "name": "hourly"})
    assert [row["name"] for row in found["schedules"]] == ["hourly"]
    with pytest.raises(NotFound):
        fakes.transport.call("schedules", {"topic": "jobs", "name": "weekly"})


def test_schedules_are_put_on_a_shard_of_their_target() -> None:
    from fasti.client.shards.schedules import home_of

    fakes = FakeShards(4, jobs=TopicSettings(kind="cron"), wide=FOUR, one=TopicSettings())
    fakes.answers["schedules"] = schedules_of({})
    fakes.answers["put_schedules"] = lambda shard, header, parts: (
        {"outcomes": [{"status": "ok", "version": shard} for _ in header["schedules"]]},
        [],
    )
    targets = {f"s{number}": "wide" if number % 3 else "one" for number in range(9)}
    named = [{"name": name, "schedule": {"target": to}} for name, to in targets.items()]
    reply, _ = fakes.transport.call("put_schedules", {"topic": "jobs", "schedules": named})
    expected = [home_of(fakes.layout(to), name) for name, to in targets.items()]
    assert [outcome["version"] for outcome in reply["outcomes"]] == expected


def test_a_schedule_that_would_move_to_another_shard_is_refused() -> None:
    fakes = FakeShards(4, jobs=TopicSettings(kind="cron"), one=TopicSettings())
    home = fakes.layout("one").all_shards[0]
    fakes.answers["schedules"] = schedules_of({(home + 1) % 4: ["daily"]})
    named = [{"name": "daily", "schedule": {"target": "one"}}]
    with pytest.raises(CrossShard, match="delete it first"):
        fakes.transport.call("put_schedules", {"topic": "jobs", "schedules": named})


def test_what_is_about_one_shard_has_to_name_it() -> None:
    fakes = FakeShards(2)
    fakes.answers["feed"] = lambda shard, header, parts: ({"shard": shard, **header}, [])
    with pytest.raises(InvalidArgument, match="shard_number"):
        fakes.transport.call("feed", {})
    assert fakes.transport.call("feed", {"shard_number": 1})[0] == {"shard": 1}
    with pytest.raises(InvalidArgument, match="no shard 2"):
        fakes.transport.call("feed", {"shard_number": 2})
