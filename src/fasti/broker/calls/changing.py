"""Update, move and cancel: from the columns of a part to the engine's command.

For the actions of these names, for parts of transactions, and for sinks. Any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fasti.broker.calls import requests
from fasti.broker.reading import refreshed
from fasti.core import commands as co
from fasti.core.fields import HEADERS
from fasti.model import Limits

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


def command(service: Service, op: str, fields: Header, batch: pa.RecordBatch) -> Any:
    """The command; `fields` are its topic, its owner, and whether it is a dry run."""
    shard, limits = service.placement.shard_of(fields["topic"]), service.limits
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
