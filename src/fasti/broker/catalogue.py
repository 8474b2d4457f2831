"""The catalogue: what topics there are. Shard 0's journal is the truth, and the other shards follow."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from fasti.broker.caller import Caller
from fasti.broker.calls.requests import Action, Answer, Header, Parts
from fasti.errors import NotFound, WrongShard

if TYPE_CHECKING:
    from fasti.broker.service import Service

CATALOGUE_SHARD = 0


class Catalogue:
    """Of one process. Any thread."""

    def __init__(self, services: Sequence[Service]) -> None:
        self._services = services

    def carry_out(
        self, action: Action, service: Service, caller: Caller, header: Header, parts: Parts
    ) -> Answer:
        """An action that changes the catalogue: answered when it holds on every shard."""
        if service.placement.catalogue.place.number != CATALOGUE_SHARD:
            raise WrongShard(
                "topics are made, changed and deleted on shard 0",
                details={"topic": header.get("topic"), "shard": CATALOGUE_SHARD},
            )
        answer = action(service, caller, dict(header), parts)
        for other in self._services:
            if other is not service:
                with suppress(NotFound):
                    action(other, caller, dict(header), parts)
        return answer
