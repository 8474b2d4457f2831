"""Calls that change the catalogue: what topics there are, their settings and bindings, whether they rest.

Where there are several shards they are shard 0's to carry out, and hold on every shard when they answer
(broker/catalogue.py). Where there is one, nothing stands in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fasti.broker.caller import Caller
from fasti.broker.calls.requests import Action, Answer, Header, Parts

if TYPE_CHECKING:
    from fasti.broker.service import Service


def of_catalogue(action: Action) -> Action:
    """The action as shard 0 carries it out for all shards."""

    def carry_out(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
        if service.host is None:
            return action(service, caller, header, parts)
        return service.host.catalogue.carry_out(action, service, caller, header, parts)

    return carry_out
