"""What a stranger sends is checked field by field and column by column."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.broker.calls import requests
from fasti.core import commands as co
from fasti.errors import InvalidArgument
from fasti.model import Limits, OnConflict, TopicSettings

SEED = (1, 2)
NOW_US = 1_000_000


def produced(columns: dict[str, Any], types: dict[str, pa.DataType] | None = None, **fields: Any):  # type: ignore[no-untyped-def]
    schema = pa.schema([(name, (types or requests.PRODUCE_TYPES)[name]) for name in columns])
    batch = pa.RecordBatch.from_pydict(columns, schema=schema)
    return requests.produce(batch, SEED, Limits(), NOW_US, topic="t", **fields)


def refusal(call: Any) -> str | None:
    with pytest.raises(InvalidArgument) as refused:
        call()
    return refused.value.field


def test_fields_have_defaults_and_types() -> None:
    known = {"topic": str, "owner": "", "limit": None, "payload": False}
    assert requests.checked({"topic": "t"}, **known) == {
        "topic": "t",
        "owner": "",
        "limit": None,
        "payload": False,
    }
    assert requests.checked({"topic": "t", "owner": None}, **known)["owner"] == ""
    assert refusal(lambda: requests.checked({}, **known)) == "topic"
    assert refusal(lambda: requests.checked({"topic": 3}, **known)) == "topic"
    assert refusal(lambda: requests.checked({"topic": "t", "tpoic": 1}, **known)) == "tpoic"
    assert refusal(lambda: requests.checked({"topic": "t", "payload": 1}, **known)) == "payload"
    assert refusal(lambda: requests.checked({"count": True}, count=int)) == "count"
    assert refusal(lambda: requests.checked({"count": 2**63}, count=int)) == "count"


def test_the_version_must_be_ours() -> None:
    assert requests.check_version({"version": 1, "topic": "t"}) == {"topic": "t"}
    assert refusal(lambda: requests.check_version({"version": 2})) == "version"
    assert refusal(lambda: requests.check_version({})) == "version"


@pytest.mark.parametrize(
    ("columns", "due", "delay"),
    [
        ({}, None, None),
        ({"due_us": [5, 6]}, [5, 6], None),
        ({"due_us": [5, None]}, [5, NOW_US], None),
        ({"due_us": [None, None]}, None, None),
        ({"delay_us": [5, None]}, None, [5, 0]),
        ({"due_us": [7, None], "delay_us": [None, 5]}, [7, NOW_US + 5], None),
        ({"due_us": [None, None], "delay_us": [1, 2]}, None, [1, 2]),
        ({"due_us": [7, None], "delay_us": [None, None]}, [7, NOW_US], None),
    ],
)
def test_each_row_has_its_own_moment(
    columns: dict[str, Any], due: list[int] | None, delay: list[int] | None
) -> None:
    when = produced({"payload": [b"a", b"b"], **columns}).when
    assert (when.due_us is None) == (due is None)
    assert (when.delay_us is None) == (delay is None)
    if due is not None:
        assert np.asarray(when.due_us).tolist() == due
    if delay is not None:
        assert np.asarray(when.delay_us).tolist() == delay


def test_columns_that_no_row_uses_are_left_out() -> None:
    command = produced({"payload": [b"a"], "key": [None], "headers": [None]})
    assert command.rows.batch.schema.names == ["payload"]
    assert command.keys is None
    command = produced({"payload": [b"a", b""], "key": ["k", None]}, on_conflict="keep")
    assert command.keys is not None
    assert command.on_conflict is OnConflict.KEEP


def test_bad_batches_are_refused_by_the_column() -> None:
    assert refusal(lambda: produced({"key": ["a"]})) == "payload"
    types = {"payload": pa.binary(), "what": pa.int64(), "due_us": pa.int32()}
    assert refusal(lambda: produced({"payload": [b""], "what": [1]}, types)) == "what"
    assert refusal(lambda: produced({"payload": [b""], "due_us": [1]}, types)) == "due_us"
    assert refusal(lambda: produced({"payload": [None]})) == "payload"
    assert refusal(lambda: produced({"payload": [b""]}, on_conflict="maybe")) == "on_conflict"
    both = {"payload": [b""], "due_us": [1], "delay_us": [1]}
    assert refusal(lambda: produced(both)) == "due_us"
    wild = {"payload": [b"", b""], "due_us": [1, None], "delay_us": [None, -1]}
    assert refusal(lambda: produced(wild)) == "delay_us"


def test_text_that_is_no_utf8_is_refused() -> None:
    noise = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    )
    batch = pa.RecordBatch.from_arrays([pa.array([b"x"]), noise], names=["payload", "key"])
    call = lambda: requests.produce(batch, SEED, Limits(), NOW_US, topic="t")  # noqa: E731
    assert refusal(call) == "batch"


def test_a_target_is_ids_or_keys() -> None:
    def target(columns: dict[str, Any]) -> Any:
        return requests.target(pa.RecordBatch.from_pydict(columns), SEED, Limits(batch_rows_max=2))

    assert target({"id": [3, 4]}).ids.tolist() == [3, 4]
    assert target({"key": ["a"]}).keys.values.to_pylist() == ["a"]
    assert refusal(lambda: target({"id": [1], "key": ["a"]})) == "id"
    assert refusal(lambda: target({"version": [1]})) == "id"
    assert refusal(lambda: target({"id": pa.array([None], type=pa.int64())})) == "id"
    assert refusal(lambda: target({"id": [1, 2, 3]})) == "batch_rows_max"


def test_settings_are_taken_by_name_over_those_there_are() -> None:
    found = requests.settings({"lease_us": 5_000_000, "retry": {"factor": 3}}, TopicSettings())
    assert found.lease_us == 5_000_000
    assert found.retry.factor == 3.0
    assert found.retry.base_us == TopicSettings().retry.base_us
    assert refusal(lambda: requests.settings({"lease": 5}, found)) == "lease"
    assert refusal(lambda: requests.settings({"lease_us": "5"}, found)) == "lease_us"
    assert refusal(lambda: requests.settings({"retry": {"what": 1}}, found)) == "what"
    assert refusal(lambda: requests.settings({"retry": {"base_us": 1.5}}, found)) == "base_us"
    assert refusal(lambda: requests.settings({"retry": 3}, found)) == "retry"


# A message that comes alone


def one(row: dict[str, Any], payload: bytes = b"x") -> co.Produce:
    return requests.produce_row(row, payload, SEED, Limits(), topic="t")


def test_a_row_says_what_a_batch_of_one_row_says() -> None:
    now_us = 1_000
    row = {"due_us": 7, "key": "k", "content_type": "text/plain", "expires_after_us": 9}
    columns = {
        "payload": pa.array([b"x"], pa.binary()),
        "due_us": pa.array([7], pa.int64()),
        "key": pa.array(["k"]),
        "content_type": pa.array(["text/plain"]),
        "expires_after_us": pa.array([9], pa.int64()),
    }
    alone = one(row)
    batch = requests.produce(pa.record_batch(columns), SEED, Limits(), now_us, topic="t")
    assert alone.rows.batch.equals(batch.rows.batch)
    assert alone.when.due_us == 7
    assert alone.expires is not None
    assert alone.expires.after_us is not None
    assert alone.expires.after_us.tolist() == [9]
    assert alone.on_conflict == batch.on_conflict
    assert one({"delay_us": 4}).when.delay_us == 4
    assert one({}).when == co.When()


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"due_us": 1, "delay_us": 1}, "due_us"),
        ({"due_us": True}, "due_us"),
        ({"due_us": "1"}, "due_us"),
        ({"due_us": 1 << 70}, "due_us"),
        ({"key": 7}, "key"),
        ({"key": ""}, "key"),
        ({"key": "\ud800"}, "key"),
        ({"key": None}, "key"),
        ({"priority": -1}, "priority"),
        ({"priority": 1 << 16}, "priority"),
        ({"expires_us": 0}, "expires_us"),
        ({"expires_us": 1, "expires_after_us": 1}, "expires_us"),
        ({"subject": "a..b"}, "subject"),
        ({"headers": {"a": "b"}}, "headers"),
        ({"payload": "x"}, "payload"),
        ({"id": 1}, "id"),
    ],
)
def test_a_row_that_is_none(row: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        one(row)
    assert caught.value.details["field"] == field
