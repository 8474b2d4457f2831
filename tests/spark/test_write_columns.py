"""Which columns a write takes, and what it says of those that it doesn't. No session is needed."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from fasti.core.fields import HEADERS
from fasti.errors import InvalidArgument
from fasti.spark.options import Options
from fasti.spark.rows import OF_KIND, RowShape, TaskRows

MOMENT = pa.timestamp("us", tz="UTC")


def schema(ddl: str) -> StructType:
    """A schema of `name type` with commas between; Spark itself would need a session for that."""
    fields = []
    for part in ddl.split(", "):
        name, kind = part.split(" ", 1)
        fields.append(
            {"name": name, "type": _TYPES.get(kind, kind), "nullable": True, "metadata": {}}
        )
    return StructType.fromJson({"type": "struct", "fields": fields})


_TYPES = {
    "bigint": "long",
    "int": "integer",
    "interval": "interval day to second",
    "map": {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True},
    "map of ints": {
        "type": "map",
        "keyType": "string",
        "valueType": "integer",
        "valueContainsNull": True,
    },
}


def shape(ddl: str, operation: str = "produce", topic: bool = True) -> RowShape:
    return RowShape.of(schema(ddl), operation, topic)


def made(ddl: str, columns: dict[str, pa.Array], operation: str = "produce") -> pa.RecordBatch:
    rows = TaskRows(shape(ddl, operation), "Spark partition 3")
    return rows.made_of(pa.RecordBatch.from_pydict(columns))


@pytest.mark.parametrize(
    ("ddl", "operation", "columns"),
    [
        ("payload binary", "produce", ("payload",)),
        ("payload string, due timestamp, key string", "produce", ("payload", "due", "key")),
        ("payload binary, due timestamp, delay interval", "produce", ("payload", "due", "delay")),
        ("key string, version bigint", "cancel", ("key", "version")),
        ("id bigint, key string, payload binary, state string", "cancel", ("id",)),
        ("id bigint, due timestamp, payload binary", "move", ("id", "due")),
        ("key string, delay interval", "move", ("key", "delay")),
        ("key string, payload string, headers map", "update", ("key", "payload", "headers")),
        ("id bigint, priority int", "update", ("id", "priority")),
        ("key string, value binary, ttl interval", "put", ("key", "value", "ttl")),
        ("key string, clustering string, payload binary", "put", ("key", "clustering", "payload")),
    ],
)
def test_columns_that_are_used(ddl: str, operation: str, columns: tuple[str, ...]) -> None:
    assert shape(ddl, operation).columns == columns


@pytest.mark.parametrize(
    ("ddl", "operation", "field", "told"),
    [
        ("key string", "produce", "payload", "needs a column 'payload'; there are key"),
        ("payload int", "produce", "payload", "must be binary, or string, which goes as UTF-8, not int"),
        ("payload binary, due timestamp_ntz", "produce", "due", "cast it to timestamp"),
        ("payload binary, due string", "produce", "due", "must be timestamp, not string"),
        ("payload binary, due bigint", "produce", "due", "must be timestamp, not bigint"),
        ("payload binary, delay int", "produce", "delay", "must be interval day to second, not int"),
        ("payload binary, headers map of ints", "produce", "headers", "must be map<string,string>"),
        ("payload binary, dealy interval", "produce", "dealy", "did you mean 'delay'?"),
        ("payload binary, state string", "produce", "state", "has no column 'state', but payload"),
        ("payload binary, key int", "produce", "key", "must be string, not int"),
        ("payload binary, payload binary", "produce", "payload", "two columns 'payload'"),
        ("version bigint", "cancel", "id", "needs a column 'id' or 'key'"),
        ("id string", "cancel", "id", "must be bigint, not string"),
        ("key string", "move", "due", "needs a column 'due' or 'delay'"),
        ("key string, due timestamp, delay interval", "move", "delay", "not both"),
        ("key string, due timestamp", "update", "payload", "needs a column 'payload' or 'priority'"),
        ("key string", "put", "value", "needs a column 'value' or 'payload'"),
        ("key string, value binary, payload binary", "put", "payload", "not both"),
        ("key string, value binary, ttl interval, expires timestamp", "put", "expires", "not both"),
        ("payload binary, topic string", "produce", "topic", "give one of them"),
    ],
)  # fmt: skip
def test_columns_that_are_refused(ddl: str, operation: str, field: str, told: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        shape(ddl, operation)
    assert told in refused.value.message
    assert refused.value.field == field


def test_a_topic_is_named_by_the_option_or_by_a_column() -> None:
    with pytest.raises(InvalidArgument, match="option 'topic' is missing"):
        shape("payload binary", topic=False)
    assert shape("payload binary, topic string", topic=False).columns == ("payload", "topic")


def test_each_kind_takes_its_operations() -> None:
    ddl = "id bigint, key string, payload binary"
    changing = {name: shape(ddl, name) for name in ("update", "cancel")}
    every = {
        "produce": shape("payload binary"),
        "put": shape("key string, value binary", "put"),
        "move": shape("id bigint, delay interval", "move"),
        **changing,
    }
    for kind, taken in OF_KIND.items():
        for operation, one in every.items():
            if operation in taken:
                one.check_kind("t", kind)
            else:
                with pytest.raises(InvalidArgument, match=f"kind '{kind}'"):
                    one.check_kind("t", kind)


def test_columns_that_a_kind_has_not() -> None:
    with pytest.raises(InvalidArgument, match="have no 'due'"):
        shape("payload binary, due timestamp").check_kind("t", "log")
    with pytest.raises(InvalidArgument, match="have no 'priority'"):
        shape("payload binary, priority int").check_kind("t", "timeline")
    shape("payload binary, priority int").check_kind("t", "priority")
    with pytest.raises(InvalidArgument, match="have no 'partition'"):
        shape("payload binary, partition int").check_kind("t", "timeline")
    shape("payload binary, partition int").check_kind("t", "log")
    # What was read has all columns; those of no use go.
    read = shape("id bigint, payload binary, priority int", "update")
    assert read.check_kind("t", "timeline") == ("priority",)
    assert read.check_kind("t", "priority") == ()


def test_the_wire_has_microseconds_and_bytes() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    found = made(
        "payload string, due timestamp, delay interval, key string, priority bigint, headers map",
        {
            "payload": pa.array(["ä", ""]),
            "due": pa.array([moment, None], MOMENT),
            "delay": pa.array([None, timedelta(hours=1)], pa.duration("us")),
            "key": pa.array(["a", None]),
            "priority": pa.array([3, None], pa.int64()),
            "headers": pa.array([[("x", "y")], None], pa.map_(pa.string(), pa.string())),
        },
    )
    assert found.to_pydict() == {
        "payload": ["ä".encode(), b""],
        "due_us": [int(moment.timestamp()) * 1_000_000, None],
        "delay_us": [None, 3_600_000_000],
        "key": ["a", None],
        "priority": [3, None],
        "headers": [[("x", "y")], None],
    }
    assert found.schema.field("headers").type == HEADERS
    assert found.schema.field("priority").type == pa.int32()


def test_every_batch_has_the_same_columns_whatever_is_null() -> None:
    rows = TaskRows(shape("payload binary, due timestamp, key string"), "Spark partition 0")
    none = {"due": pa.nulls(2, MOMENT), "key": pa.nulls(2, pa.string())}
    batch = pa.RecordBatch.from_pydict({"payload": pa.array([b"a", b"b"]), **none})
    assert rows.made_of(batch).schema.names == ["payload", "due_us", "key"]


FAR = pa.array([(1 << 62) + 5], pa.int64()).view(MOMENT)


@pytest.mark.parametrize(
    ("ddl", "operation", "columns", "told"),
    [
        ("payload binary, key string", "produce",
         {"payload": pa.array([b"", None]), "key": pa.array(["a", "b"])},
         "column 'payload' is null in row 1 of Spark partition 3 (key 'b')"),
        ("payload binary, due timestamp", "produce",
         {"payload": pa.array([b""]), "due": pa.array([datetime(1969, 1, 1, tzinfo=UTC)], MOMENT)},
         "column 'due' is before 1970 or too far away: 1969-01-01 00:00:00+00:00 in row 0"),
        ("payload binary, due timestamp", "produce",
         {"payload": pa.array([b""]), "due": FAR},
         f"too far away: {(1 << 62) + 5} microseconds since 1970"),
        ("payload binary, delay interval", "produce",
         {"payload": pa.array([b""]), "delay": pa.array([timedelta(seconds=-1)], pa.duration("us"))},
         "column 'delay' is -1 day, 23:59:59, not 0 to"),
        ("payload binary, priority int", "produce",
         {"payload": pa.array([b""]), "priority": pa.array([70_000], pa.int32())},
         "column 'priority' is 70000, not 0 to 65535"),
        ("payload binary, due timestamp, delay interval", "produce",
         {"payload": pa.array([b""]), "due": pa.array([datetime(2030, 1, 1, tzinfo=UTC)], MOMENT),
          "delay": pa.array([timedelta(1)], pa.duration("us"))},
         "column 'due' and 'delay' are both given in row 0"),
        ("key string", "cancel", {"key": pa.array(["a", None])}, "column 'key' is null in row 1"),
        ("id bigint, key string, due timestamp", "move",
         {"id": pa.array([5]), "key": pa.array(["a"]), "due": pa.nulls(1, MOMENT)},
         "column 'due' is null in row 0 of Spark partition 3 (key 'a') (id 5)"),
        ("payload binary, headers map", "produce",
         {"payload": pa.array([b"", b""]),
          "headers": pa.array([[("a", "b")], [("c", None)]], pa.map_(pa.string(), pa.string()))},
         "column 'headers' has a null among its values in row 1"),
    ],
)  # fmt: skip
def test_rows_that_are_refused_are_named(
    ddl: str, operation: str, columns: dict[str, pa.Array], told: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        made(ddl, columns, operation)
    assert told in refused.value.message


def test_rows_are_counted_over_batches() -> None:
    rows = TaskRows(shape("payload binary"), "Spark partition 0")
    rows.made_of(pa.RecordBatch.from_pydict({"payload": pa.array([b""] * 10)}))
    with pytest.raises(InvalidArgument, match="row 12 of"):
        rows.made_of(pa.RecordBatch.from_pydict({"payload": pa.array([b"", b"", None])}))


def test_an_entry_without_a_value_is_one_to_delete() -> None:
    columns = {"key": pa.array(["a", "b"]), "value": pa.array([b"x", None], pa.binary())}
    found = made("key string, value binary", columns, "put")
    assert found.to_pydict() == {"key": ["a", "b"], "payload": [b"x", None]}


@pytest.mark.parametrize(
    ("raw", "stream", "told"),
    [
        ({"view": "messages"}, False, "option 'view' is for reading"),
        ({"opration": "produce"}, False, "did you mean 'operation'?"),
        ({"operation": "delete"}, False, "expected produce or update or move or cancel or put"),
        ({"onConflict": "ignore"}, False, "expected fail or skip"),
        ({"operation": "cancel", "onConflict": "skip"}, False, "onConflict is for operation 'produce'"),
        ({"txnAppId": "a"}, False, "txnAppId and txnVersion go together"),
        ({"txnAppId": "a", "txnVersion": "-1"}, False, "a whole number from 0 on"),
        ({"sinkId": "a"}, False, "sinkId is for streams"),
        ({"txnAppId": "a", "txnVersion": "1"}, True, "a stream counts its batches itself"),
    ],
)  # fmt: skip
def test_options_that_are_refused(raw: dict[str, str], stream: bool, told: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Options.writing(raw, stream)
    assert told in refused.value.message
