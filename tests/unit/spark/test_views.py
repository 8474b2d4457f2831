"""The columns of each view, and what travels for them."""

import pyarrow as pa
import pytest

from fasti.errors import InvalidArgument
from fasti.protocol.schemas import KV_ROWS, LOG_ROWS, MESSAGES
from fasti.spark.views import CONSTANT, VIEWS, View
from fasti.storage.transitions import WITH_PAYLOADS

WIRES = {"messages": MESSAGES, "log": LOG_ROWS, "kv": KV_ROWS, "changes": WITH_PAYLOADS}


@pytest.mark.parametrize("name", VIEWS)
def test_every_column_comes_over_the_wire_or_is_known_to_the_task(name: str) -> None:
    for column in VIEWS[name]:
        if column.name not in CONSTANT[name]:
            assert column.source in WIRES[name].names


@pytest.mark.parametrize("name", VIEWS)
def test_no_column_of_the_wire_is_left_out(name: str) -> None:
    assert {column.source for column in VIEWS[name]} >= set(WIRES[name].names)


@pytest.mark.parametrize("name", VIEWS)
def test_rows_of_the_wire_become_rows_of_the_view_to_the_letter(name: str) -> None:
    view = View(name, None)
    wire = pa.RecordBatch.from_pylist([{}, {}, {}], schema=nullable(WIRES[name]))
    made = view.made_of(wire, shard="9f3c", snapshot_position=7)
    assert made.schema == view.schema
    assert made.num_rows == 3
    for constant in CONSTANT[name]:
        assert len(set(made.column(constant).to_pylist())) == 1


def nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def test_only_what_is_asked_for_travels() -> None:
    assert View("messages", ["due", "payload"]).wire == ["due_us", "payload"]
    assert View("kv", ["value", "key"]).wire == ["value", "key"]
    # By these a read is gone on with.
    assert View("log", ["payload"]).wire == ["payload", "offset"]
    assert View("changes", ["op", "position"]).wire == ["op", "position"]
    # Something must, so that rows can be counted.
    assert View("messages", ["snapshot_position"]).wire == ["version"]


def test_payloads_and_headers_can_be_left_out() -> None:
    names = [column.name for column in View("changes", None, payload=False).columns]
    assert "payload" not in names
    names = [column.name for column in View("log", None, headers=False).columns]
    assert "headers" not in names


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (["duo"], "has no column 'duo': did you mean 'due'?"),
        (["zzz"], "there are id, partition"),
        (["id", "id"], "each column once"),
        ([], "each column once"),
    ],
)
def test_columns_that_can_not_be_are_refused(columns: list[str], told: str) -> None:
    with pytest.raises(InvalidArgument) as info:
        View("messages", columns)
    assert told in info.value.message
