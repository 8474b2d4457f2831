"""Update, move and cancel: from the columns of a part to the engine's command.

For the actions of these names, for parts of transactions, and for sinks. Any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fasti.broker.calls import requests
from fasti.broker.reading import refreshed
from fasti.core import commands as co
from fasti.core.fields import HEADERS
from fasti.core.keys import Keys
from fasti.model import Limits
from fasti.protocol.single_row import Part, SingleRow

if TYPE_CHECKING:
    from fasti.broker.service import Service

Header = dict[str, Any]

# Columns beside those that name the messages.
TYPES: dict[str, dict[str, pa.DataType]] = {
    "update": {
        "payload": pa.binary(),
        "headers": HEADERS,
        "content_type": pa.string(),
        "priority": pa.int32(),
    },
    "move": {
        "due_us": pa.int64(),
        "delay_us": pa.int64(),
        "expires_us": pa.int64(),
        "expires_after_us": pa.int64(),
    },
    "cancel": {},
}
# Of one row by itself, which is checked without Arrow.
_ROWS = {op: {"id", "key", "version", *TYPES[op]} for op in ("move", "cancel")}
_KINDS = {"key": str, **dict.fromkeys(_ROWS["move"] - {"key"}, int)}


def command(service: Service, op: str, fields: Header, part: Part) -> Any:
    """The command; `fields` are its topic, its owner, and whether it is a dry run."""
    shard, limits = service.placement.shard_of(fields["topic"]), service.limits
    if isinstance(part, SingleRow) and (made := _of_row(op, fields, part.values, shard.store.seed)):
        return made
    batch = requests.one_batch(part)
    target = requests.target(batch, shard.store.seed, limits, **TYPES[op])
    expected = {"versions": requests.versions(batch), "owner": fields["owner"]}
    expected["dry_run"] = fields.get("dry_run", False)
    if op == "cancel":
        return co.Cancel(fields["topic"], target, **expected)
    if op == "move":
        expected["expires"] = requests.expires(batch)
        return co.Move(fields["topic"], target, requests.moved_to(batch), **expected)
    priorities = requests.changed_priorities(batch)
    if priorities is not None and not _has_contents(batch):
        return co.Reprioritise(fields["topic"], target, priorities, **expected)
    rows = requests.contents(batch, limits)
    if not expected["dry_run"]:
        rows = refreshed(shard, fields["topic"], target, rows)
    return co.Update(fields["topic"], target, rows, priorities=priorities, **expected)


def _of_row(op: str, fields: Header, row: Header, seed: requests.Seed) -> Any:
    """The command of one row without a fault; None: the columns of its batch are to be checked."""
    if op not in _ROWS or any(_KINDS.get(name) is not type(value) for name, value in row.items()):
        return None
    if ("id" in row) == ("key" in row) or not row.keys() <= _ROWS[op]:
        return None
    if "key" in row:
        named = co.Target(keys=Keys(row["key"], seed))
    else:
        named = co.Target(np.array([row["id"]], dtype=np.int64))
    expected = (row.get("version", 0), fields["owner"], fields.get("dry_run", False))
    if op == "cancel":
        return co.Cancel(fields["topic"], named, *expected)
    when = co.When(row.get("due_us"), row.get("delay_us"))
    if (when.due_us is None) == (when.delay_us is None):
        return None
    expires = requests.row_expiry(row.get("expires_us"), row.get("expires_after_us"))
    return co.Move(fields["topic"], named, when, *expected, expires)


def check(op: str, batch: pa.RecordBatch, seed: tuple[int, int], limits: Limits) -> co.Target:
    """Raises what `command` would say of the columns, without asking the engine; what they name."""
    target = requests.target(batch, seed, limits, **TYPES[op])
    if op == "move":
        requests.moved_to(batch)
        requests.expires(batch)
    elif op == "update":
        priorities = requests.changed_priorities(batch)
        if priorities is None or _has_contents(batch):
            requests.contents(batch, limits)
    return target


def _has_contents(batch: pa.RecordBatch) -> bool:
    return bool({"payload", "headers", "content_type"} & {*batch.schema.names})
