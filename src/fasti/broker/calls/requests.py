"""From the protocol's words to the engine's commands.

Everything that a stranger may send is checked here, in the thread that received it: fields that
are not known, types, column names, sizes. Keys are hashed and payloads put into their columns here
too, so that the sequencer touches fixed-width columns only. The types that all actions share are at the
end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fasti.broker.caller import Caller
from fasti.core import commands as co
from fasti.core.keys import Keys, Rows
from fasti.core.numbered.commands import CallNumber
from fasti.core.routing.subjects import check_subjects
from fasti.core.sinks.commands import PARCELS
from fasti.errors import InvalidArgument
from fasti.model import (
    DUE_MAX_US,
    PRIORITY_MAX,
    Limits,
    OnConflict,
    RetryPolicy,
    TopicSettings,
)
from fasti.protocol.numbered import CLIENT_CHARS_MAX, NUMBERED, ONCE
from fasti.protocol.schemas import PRODUCE_TYPES, RETURNED, VERSION
from fasti.protocol.single_row import Part, as_batch

if TYPE_CHECKING:
    from fasti.broker.service import Service


Int64s = NDArray[np.int64]
Seed = tuple[int, int]
Header = dict[str, Any]
Columns = dict[str, pa.Array]

INT64_MAX = (1 << 63) - 1
# What the journal keeps with a payload.
_CONTENTS = ("key", "headers", "content_type", "subject")
_CONFLICTS = {policy.name.lower(): policy for policy in OnConflict}


def checked(header: Header, **known: Any) -> Header:
    """The header with its defaults filled in: `name=type` must be there, `name=default` may.

    An unknown field, a missing one or one of the wrong type is refused by its name.
    """
    for name in header:
        if name not in known:
            raise InvalidArgument(f"unknown field {name!r}", field=name)
    found: Header = {}
    for name, wanted in known.items():
        value = header.get(name)
        if isinstance(wanted, type):
            if name not in header:
                raise InvalidArgument(f"{name!r} is missing", field=name)
            _check_type(name, value, wanted)
        elif name in header and not (value is None and wanted in (None, 0, "")):
            if wanted is not None:
                _check_type(name, value, type(wanted))
        else:
            value = wanted
        found[name] = value
    return found


def _check_type(name: str, value: Any, wanted: type) -> None:
    fits = isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))
    if not fits:
        raise InvalidArgument(f"{name!r} must be a JSON {_WORDS[wanted]}", field=name)
    if wanted is str and not _is_text(value):
        raise InvalidArgument(f"{name!r} can't be encoded as UTF-8", field=name)
    if wanted is int and abs(value) > INT64_MAX:
        raise InvalidArgument(f"{name!r} must fit 64 bits", field=name, limit=INT64_MAX)


def _is_text(value: str) -> bool:
    """JSON may name half of a pair of surrogates, which is no character."""
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


_WORDS = {str: "string", int: "integer", bool: "boolean", dict: "object", list: "list"}


def check_version(header: Header) -> Header:
    """The header without its version, which must be ours."""
    rest = dict(header)
    version = rest.pop("version", None)
    # JSON's true and 1.0 are equal to 1 here, but they are not the number of a version.
    if type(version) is not int or version != VERSION:
        raise InvalidArgument(
            f"this broker speaks version {VERSION} of the protocol, not {version!r}",
            field="version",
            details={"supported": [VERSION]},
        )
    return rest


def call_number(action: str, once: Any) -> CallNumber:
    """The number of a call. Raises `invalid_argument`, also if the action can't have one."""
    if action not in NUMBERED:
        raise InvalidArgument(f"{action} can't have a number", field=ONCE)
    if not isinstance(once, dict):
        raise InvalidArgument(f"{ONCE!r} must be a JSON object", field=ONCE)
    fields = checked(once, client=str, number=int, since=0, age_us=0)
    client, number = fields["client"], fields["number"]
    if not 0 < len(client) <= CLIENT_CHARS_MAX:
        raise InvalidArgument(
            f"a client's name has 1 to {CLIENT_CHARS_MAX} characters",
            field="client",
            limit=CLIENT_CHARS_MAX,
        )
    if number < 1:
        raise InvalidArgument("calls are numbered from 1 on", field="number", limit=1)
    since = fields["since"] or number
    if not 0 < since <= number:
        raise InvalidArgument("since is a number up to the call's own", field="since", limit=number)
    if fields["age_us"] < 0:
        raise InvalidArgument("age_us can't be negative", field="age_us", limit=0)
    return CallNumber(client, number, since, fields["age_us"])


def integer(header: Header, name: str) -> int | None:
    """An integer that may be missing or null."""
    value = header.get(name)
    if value is not None:
        _check_type(name, value, int)
    return value


def one_batch(table: Part) -> pa.RecordBatch:
    """All rows of a part in one piece."""
    table = as_batch(table)
    if isinstance(table, pa.RecordBatch):
        return table
    batches = table.combine_chunks().to_batches()
    if batches:
        return batches[0]
    empty = [pa.array([], type=field.type) for field in table.schema]
    return pa.RecordBatch.from_arrays(empty, schema=table.schema)


def check_columns(schema: pa.Schema, types: Mapping[str, pa.DataType], needed: str) -> None:
    """Columns that nobody knows, twice the same, or of another type are refused by name."""
    names = schema.names
    for name in names:
        if name not in types or names.count(name) > 1:
            known = ", ".join(types)
            raise InvalidArgument(f"column {name!r} is not one of {known}, once each", field=name)
        if schema.field(name).type != types[name]:
            found = schema.field(name).type
            raise InvalidArgument(f"column {name!r} must be {types[name]}, not {found}", field=name)
    if needed and needed not in names:
        raise InvalidArgument(f"the column {needed!r} is missing", field=needed)


def misshapen(batch: pa.RecordBatch) -> InvalidArgument | None:
    """Buffers that are shorter than the rows they should hold, before anybody reads past them.

    Arrow takes a stranger's word for the number of rows. This looks at sizes only and is cheap;
    `check_contents` looks at everything.
    """
    try:
        batch.validate()
    except pa.ArrowInvalid as error:
        return InvalidArgument(f"the batch is malformed: {error}", field="batch")
    return None


def check_contents(batch: pa.RecordBatch) -> None:
    """The bytes are what the types say: offsets in range, texts in UTF-8."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidArgument(f"the batch is malformed: {error}", field="batch") from error


def check_rows(batch: pa.RecordBatch, limits: Limits) -> None:
    """No more than a command may have."""
    limit = limits.batch_rows_max
    if batch.num_rows > limit:
        raise InvalidArgument(f"more than {limit} rows", field="batch_rows_max", limit=limit)


# Produce


def produce(
    batch: pa.RecordBatch, seed: Seed, limits: Limits, now_us: int, **fields: Any
) -> co.Produce:
    """A batch of new messages. `fields` are those of the command; `on_conflict` is a word."""
    check_columns(batch.schema, PRODUCE_TYPES, "payload")
    check_contents(batch)
    _check_produce(fields, limits)
    used = _used_columns(batch)
    rows = _rows(batch.column("payload"), used, limits)
    return co.Produce(
        rows=rows,
        when=_when(used, now_us),
        keys=rows.keys(seed),
        priorities=_priorities(used),
        expires=_expires(used),
        **fields,
    )


def _check_produce(fields: Header, limits: Limits) -> None:
    fields["on_conflict"] = _conflict(fields.get("on_conflict") or "reject")
    for name in ("producer", "stage"):
        if len(fields.get(name, "").encode()) > limits.name_bytes_max:
            limit = limits.name_bytes_max
            raise InvalidArgument(f"{name} has more than {limit} bytes", field=name, limit=limit)


def produce_row(
    row: Header, payload: bytes, seed: Seed, limits: Limits, **fields: Any
) -> co.Produce:
    """One new message, whose columns stand in a header. `fields` as for `produce`."""
    _check_produce(fields, limits)
    texts: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for name, value in row.items():
        if name in _ROW_TEXTS:
            _check_type(name, value, str)
            texts[name] = value
        elif name in _ROW_NUMBERS:
            _check_type(name, value, int)
            numbers[name] = value
        else:
            known = ", ".join((*_ROW_TEXTS, *_ROW_NUMBERS))
            raise InvalidArgument(f"{name!r} is not one of {known}", field=name)
    if "subject" in texts:
        check_subjects(pa.array([texts["subject"]], pa.string()))
    rows = Rows.single(payload, limits, **texts)
    due_us, delay_us = numbers.get("due_us"), numbers.get("delay_us")
    if due_us is not None and delay_us is not None:
        raise InvalidArgument("a row can have due_us or delay_us, not both", field="due_us")
    return co.Produce(
        rows=rows,
        when=co.When(due_us, delay_us),
        keys=rows.keys(seed),
        priorities=_row_priority(numbers.get("priority")),
        expires=row_expiry(numbers.get("expires_us"), numbers.get("expires_after_us")),
        **fields,
    )


_ROW_TEXTS = ("key", "content_type", "subject")
_ROW_NUMBERS = ("due_us", "delay_us", "priority", "expires_us", "expires_after_us")


def _row_priority(priority: int | None) -> NDArray[np.uint16] | None:
    if priority is None:
        return None
    if not 0 <= priority <= PRIORITY_MAX:
        raise _bad_priority()
    return np.array([priority], dtype=np.uint16)


def row_expiry(at_us: int | None, after_us: int | None) -> co.Expires | None:
    """By when one row must be begun; None if it doesn't say so. Raises `invalid_argument`."""
    if at_us is None and after_us is None:
        return None
    for name, value in (("expires_us", at_us), ("expires_after_us", after_us)):
        if value is not None and value < 1:
            raise InvalidArgument(f"{name} must be at least 1", field=name, limit=1)
    if at_us is not None and after_us is not None:
        raise _two_expiries()
    return co.Expires(
        None if at_us is None else np.array([at_us], dtype=np.int64),
        None if after_us is None else np.array([after_us], dtype=np.int64),
    )


def _two_expiries() -> InvalidArgument:
    return InvalidArgument(
        "a row can have expires_us or expires_after_us, not both", field="expires_us"
    )


def _bad_priority() -> InvalidArgument:
    return InvalidArgument(
        f"a priority must be 0 to {PRIORITY_MAX}", field="priority", limit=PRIORITY_MAX
    )


def _used_columns(batch: pa.RecordBatch) -> Columns:
    """Those in which a row has a value. Asked for once: each question to Arrow has its price."""
    return {
        name: column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if not len(column) or column.null_count < len(column)
    }


def expires(batch: pa.RecordBatch) -> co.Expires | None:
    """By when rows must be begun; None if no row says so."""
    return _expires(_used_columns(batch))


def _expires(used: Columns) -> co.Expires | None:
    at, after = used.get("expires_us"), used.get("expires_after_us")
    for name, column in (("expires_us", at), ("expires_after_us", after)):
        if column is not None and len(column) and pc.min(column).as_py() < 1:
            raise InvalidArgument(f"{name} must be at least 1", field=name, limit=1)
    if at is None and after is None:
        return None
    if at is not None and after is not None:
        if pc.any(pc.and_(at.is_valid(), after.is_valid())).as_py():
            raise _two_expiries()
    return co.Expires(
        None if at is None else filled(at, 0), None if after is None else filled(after, 0)
    )


def _priorities(used: Columns) -> NDArray[np.uint16] | None:
    """0 where a row has none."""
    column = used.get("priority")
    if column is None:
        return None
    values = filled(column, 0)
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) <= PRIORITY_MAX:
        raise _bad_priority()
    return values.astype(np.uint16)


def _conflict(word: str) -> OnConflict:
    policy = _CONFLICTS.get(word)
    if policy is None:
        words = ", ".join(_CONFLICTS)
        raise InvalidArgument(f"{word!r} is not one of {words}", field="on_conflict")
    return policy


def _rows(payloads: pa.Array, used: Columns, limits: Limits) -> Rows:
    contents = {name: used[name] for name in _CONTENTS if name in used and len(payloads)}
    if "subject" in contents:
        check_subjects(contents["subject"])
    return Rows.of(payloads, limits, **contents)


def _when(used: Columns, now_us: int) -> co.When:
    due, delay = used.get("due_us"), used.get("delay_us")
    if due is None and delay is None:
        return co.When()
    if due is None:
        assert delay is not None
        # No delay is one of 0.
        return co.When(delay_us=filled(delay, 0))
    if delay is None:
        return co.When(due_us=filled(due, now_us))
    if pc.any(pc.and_(due.is_valid(), delay.is_valid())).as_py():
        raise InvalidArgument("a row can have due_us or delay_us, not both", field="due_us")
    wait = filled(delay, 0)
    if len(wait) and (int(wait.min()) < 0 or int(wait.max()) > DUE_MAX_US - now_us):
        raise InvalidArgument("delay_us is out of range", field="delay_us", limit=DUE_MAX_US)
    return co.When(due_us=np.where(due.is_valid(), filled(due, 0), now_us + wait))


def filled(column: pa.Array, default: int) -> Int64s:
    """As numpy, with a value for null."""
    if column.null_count:
        column = column.fill_null(default)
    return column.to_numpy(zero_copy_only=False)


# Messages that are named


_TARGET_TYPES = {"id": pa.int64(), "key": pa.string(), "version": pa.int64()}


def target(batch: pa.RecordBatch, seed: Seed, limits: Limits, **more: pa.DataType) -> co.Target:
    """The messages that a part names, by id or by key; `more` are columns it may have besides."""
    check_columns(batch.schema, _TARGET_TYPES | more, "")
    check_contents(batch)
    by_id, by_key = "id" in batch.schema.names, "key" in batch.schema.names
    if by_id == by_key:
        raise InvalidArgument("name messages by either id or key", field="id")
    check_rows(batch, limits)
    named = batch.column("id" if by_id else "key")
    if named.null_count:
        raise InvalidArgument("an id or key is null", field="id" if by_id else "key")
    return co.Target(ids=filled(named, 0)) if by_id else co.Target(keys=Keys(named, seed))


def versions(batch: pa.RecordBatch) -> Int64s | int:
    """The version that each row expects; 0 for any."""
    return filled(batch.column("version"), 0) if "version" in batch.schema.names else 0


def contents(batch: pa.RecordBatch, limits: Limits) -> Rows:
    """What an update brings."""
    if "payload" not in batch.schema.names:
        raise InvalidArgument("the column 'payload' is missing", field="payload")
    return Rows.of(
        batch.column("payload"),
        limits,
        **{
            name: batch.column(name)
            for name in ("headers", "content_type")
            if name in batch.schema.names
        },
    )


def changed_priorities(batch: pa.RecordBatch) -> NDArray[np.uint16] | None:
    """The priorities that an update gives, one to every row; None if it gives none."""
    if "priority" in batch.schema.names and batch.column("priority").null_count:
        raise InvalidArgument("a priority is null", field="priority")
    return _priorities(_used_columns(batch))


def moved_to(batch: pa.RecordBatch) -> co.When:
    """Where a move goes: a due time for each row, or a delay for each."""
    given = [name for name in ("due_us", "delay_us") if name in batch.schema.names]
    if len(given) != 1 or batch.column(given[0]).null_count:
        raise InvalidArgument("a move needs due_us or delay_us for every row", field="due_us")
    return co.When(**{given[0]: filled(batch.column(given[0]), 0)})


# Under a lease


_RETURNED_TYPES = {field.name: field.type for field in RETURNED}
_RETURNED_FIELDS: dict[str, Header] = {
    "ack": {"group": ""},
    "extend": {"group": "", "length_us": int},
    "nack": {"group": "", "reason": "", "delay_us": None},
    "reject": {"group": "", "reason": ""},
    "release": {"group": "", "delay_us": None},
}
RETURNS = frozenset(_RETURNED_FIELDS)


def returned(op: str, topic: str, header: Header, batch: pa.RecordBatch, limits: Limits) -> Any:
    """The command of an ack, nack, reject, release or extend."""
    check_columns(batch.schema, _RETURNED_TYPES, "id")
    check_contents(batch)
    check_rows(batch, limits)
    if "token" not in batch.schema.names:
        raise InvalidArgument("the column 'token' is missing", field="token")
    ids, tokens = batch.column("id"), batch.column("token")
    if ids.null_count or tokens.null_count:
        raise InvalidArgument("an id or token is null", field="id")
    place = (topic, filled(ids, 0), filled(tokens, 0))
    names = batch.schema.names
    started = filled(batch.column("started_us"), 0) if "started_us" in names else 0
    group = header["group"]
    if op == "ack":
        return co.Ack(*place, started_us=started, group=group)
    if op == "extend":
        return co.Extend(*place, length_us=header["length_us"], group=group)
    if op == "nack":
        when = _due_again(header, batch)
        return co.Nack(*place, header["reason"], started, group, when)
    if op == "reject":
        return co.Reject(*place, reason=header["reason"], started_us=started, group=group)
    when = _due_again(header, batch) or co.When()
    return co.Release(*place, when=when, started_us=started, group=group)


def returned_fields(op: str) -> Header:
    """The fields that such an op has, for `checked`."""
    return _RETURNED_FIELDS[op]


def _due_again(header: Header, batch: pa.RecordBatch) -> co.When | None:
    """When what goes back is due again; None if nothing says it."""
    delay_us = integer(header, "delay_us")
    due = _used_columns(batch).get("due_us")
    if delay_us is not None:
        return co.When(delay_us=delay_us)
    if due is None:
        return None
    if due.null_count:
        raise InvalidArgument("due_us is given for every row or for none", field="due_us")
    return co.When(due_us=filled(due, 0))


# Topics


def settings(given: Header, base: TopicSettings) -> TopicSettings:
    """The settings with those that are given put in."""
    known = {field.name: getattr(base, field.name) for field in dataclass_fields(base)}
    retry = dict(given).pop("retry", None)
    plain = {name: value for name, value in given.items() if name != "retry"}
    defaults = {name: value for name, value in known.items() if name != "retry"}
    found = checked(plain, **defaults)
    if retry is None:
        found["retry"] = base.retry
    else:
        _check_type("retry", retry, dict)
        found["retry"] = _retry(retry, base.retry)
    return TopicSettings(**found)


def _retry(given: Header, base: RetryPolicy) -> RetryPolicy:
    found = {field.name: getattr(base, field.name) for field in dataclass_fields(base)}
    for name, value in given.items():
        if name not in found:
            raise InvalidArgument(f"retry has no field {name!r}", field=name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or (name.endswith("_us") and not isinstance(value, int)):
            raise InvalidArgument(f"{name!r} of retry must be a number", field=name)
        found[name] = value if name.endswith("_us") else float(value)
    return RetryPolicy(**found)


Parts = list[Part]
Answer = tuple[Header, list[pa.RecordBatch]]
Action = Callable[["Service", Caller, Header, Parts], Answer]


@dataclass(frozen=True, slots=True)
class Quick:
    """An action that waits for nothing but its own step and sync, so that it may be called on a
    stream of calls (call_stream.py), where requests are carried out one after another.
    """

    carry_out: Action

    def __call__(self, service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
        return self.carry_out(service, caller, header, parts)


# A command of a transaction: from its fields (without `op`) and its rows.
PartOf = Callable[["Service", Header, pa.RecordBatch], Any]


def check_own(topic: str) -> None:
    """Raises where a topic is the broker's own."""
    if topic == PARCELS:
        raise InvalidArgument(f"{topic!r} is internal to the broker", field="topic")


def one(parts: Parts) -> pa.RecordBatch:
    """The action's only part."""
    return one_batch(only(parts))


def only(parts: Parts) -> Part:
    """The same as it came."""
    if len(parts) != 1:
        raise InvalidArgument("this action takes exactly one part", field="parts")
    return parts[0]


def none(parts: Parts) -> None:
    """The action has no parts."""
    if parts:
        raise InvalidArgument("this action takes no parts", field="parts")
