"""What all actions share: their types, and the parts that a call brings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.core.sinks.commands import PARCELS
from fasti.errors import InvalidArgument

if TYPE_CHECKING:
    from fasti.broker.service import Service

Header = dict[str, Any]
Parts = list[pa.Table]
Answer = tuple[Header, list[pa.RecordBatch]]
Action = Callable[["Service", Caller, Header, Parts], Answer]
# A command of a transaction: from its fields (without `op`) and its rows.
PartOf = Callable[["Service", Header, pa.RecordBatch], Any]


def check_own(topic: str) -> None:
    """Raises where a topic is the broker's own."""
    if topic == PARCELS:
        raise InvalidArgument(f"{topic!r} is internal to the broker", field="topic")


def one(parts: Parts) -> pa.RecordBatch:
    """The action's only part."""
    if len(parts) != 1:
        raise InvalidArgument("this action takes exactly one part", field="parts")
    return requests.one_batch(parts[0])


def none(parts: Parts) -> None:
    """The action has no parts."""
    if parts:
        raise InvalidArgument("this action takes no parts", field="parts")
