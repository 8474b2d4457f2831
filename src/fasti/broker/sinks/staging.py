"""A sink's stream: batches into one stage, a receipt for each, in their order.

As a producer's stream (calls/intake.py), with the same two threads. Rows are counted: a batch says how
many rows of its stage come before it, so one that is sent again over another stream stands there once.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.intake import Intake
from fasti.broker.sinks import rows
from fasti.core import commands as co
from fasti.core.replies import Reply
from fasti.core.sinks.commands import PARCELS
from fasti.errors import InvalidArgument
from fasti.model import TopicSettings

if TYPE_CHECKING:
    from fasti.broker.service import Service

Header = dict[str, Any]


class StageIntake(Intake):
    """One stream of `stage`."""

    op = "stage"

    def __init__(self, service: Service, caller: Caller, descriptor: Header) -> None:
        fields = requests.checked(
            descriptor,
            topic=str,
            sink=str,
            batch=int,
            partition=int,
            attempt=int,
            operation="produce",
            owner="",
        )
        check_sink(service, fields["sink"])
        for name in ("batch", "partition", "attempt"):
            if fields[name] < 0:
                raise InvalidArgument(f"{name} must be 0 or more", field=name, limit=0)
        self._begin(service, caller, fields["topic"], ordered=True)
        kind, operation = self.settings.kind, fields["operation"]
        rows.check_operation(operation, fields["topic"], kind)
        place = (fields["topic"], kind, fields["owner"], self.settings.partitions)
        self._meant = rows.Meant(operation, *place)
        self.types, self.needed = self._meant.types, self._meant.needed
        numbers = (fields["batch"], fields["partition"], fields["attempt"])
        self.stage = "/".join(map(str, (fields["sink"], fields["topic"], *numbers)))
        self._sink, self._batch = fields["sink"], fields["batch"]
        self._rows = 0
        self._counts: list[int] = []
        if not self._meant.is_native:
            # Made when it is needed; there already is as good.
            # On several shards each has its own partition of it.
            settings = TopicSettings(partitions=self._shard.place.count)
            service.command(co.CreateTopic(PARCELS, settings, is_own=True))

    def _submit(
        self, metadata: Header, content: pa.RecordBatch | bytes, lead: bool
    ) -> Future[list[Any]]:
        if isinstance(content, bytes):
            raise InvalidArgument("rows are staged in batches", field="row")
        offset = requests.checked(metadata, offset=int)["offset"]
        if offset < 0:
            raise InvalidArgument("offset must be 0 or more", field="offset", limit=0)
        command = rows.staged(self._service, self._meant, content)
        command.stage = self.stage
        place = (self._sink, self._batch, self._meant.operation, self._meant.topic)
        command.staging = co.Staging(*place, offset)
        # What a topic with bindings says to being staged into is said by the engine.
        self._counts.append(offset + content.num_rows)
        return self._shard.submit([command], lead=lead)

    def _receipt(self, reply: Reply) -> Header:
        return {"rows": self._counts.pop(0)}


def check_sink(service: Service, sink: str) -> None:
    """Raises unless it may be a sink's name."""
    limit = service.limits.name_bytes_max
    if not sink or len(sink.encode()) > limit:
        raise InvalidArgument(f"a sink's name has 1 to {limit} bytes", field="sink", limit=limit)
