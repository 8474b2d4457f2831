"""Calls that change the catalogue: what topics there are, their settings and bindings, whether they rest.

Where there are several shards they are shard 0's to carry out, and hold on every shard when they answer
(broker/catalogue.py). Where there is one, nothing stands in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.requests import Action, Answer, Header, PartOf, Parts, none
from fasti.core.catalogue.commands import CataloguePage
from fasti.errors import PermissionDenied

if TYPE_CHECKING:
    from fasti.broker.catalogue import LocalShard
    from fasti.broker.service import Service


def of_catalogue(action: Action) -> Action:
    """The action as shard 0 carries it out for all shards."""

    def carry_out(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
        if service.host is None or service.host.catalogue is None:
            return action(service, caller, header, parts)
        return service.host.catalogue.carry_out(action, service, caller, header, parts)

    return carry_out


# Between processes of one broker


def _shard(service: Service, caller: Caller, parts: Parts) -> LocalShard:
    """The shard that another process asks. Raises `permission_denied` for everybody else."""
    none(parts)
    if not caller.is_peer or service.host is None or service.host.catalogue is None:
        raise PermissionDenied("processes of one broker call this, and nobody else")
    return service.host.catalogue.of_shard(service)


def _follow_catalogue(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    """Carries a page out, if there is one, and tells up to which version the shard has the catalogue."""
    shard = _shard(service, caller, parts)
    page = requests.checked(header, page=None)["page"]
    if page is None:
        return {"version": shard.version()}, []
    return {"version": shard.follow(CataloguePage.from_dict(page))}, []


def _read_catalogue(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    """A page of what has changed; of shard 0."""
    shard = _shard(service, caller, parts)
    page = shard.read(requests.checked(header, after=int)["after"])
    return {"page": page.to_dict()}, []


def _idle_topics(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    """Topics of the catalogue that nobody uses on this shard, by number."""
    shard = _shard(service, caller, parts)
    return {
        "topics": [list(topic) for topic in shard.idle(requests.checked(header, after=0)["after"])]
    }, []


ACTIONS: dict[str, Action] = {
    "follow_catalogue": _follow_catalogue,
    "read_catalogue": _read_catalogue,
    "idle_topics": _idle_topics,
}
TRANSACTION_PARTS: dict[str, PartOf] = {}
