"""Actions on bindings between topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.catalogue_calls import of_catalogue
from fasti.broker.calls.requests import Action, Answer, Header, PartOf, Parts, none
from fasti.core.routing.commands import Bind, ReadBindings, Unbind

if TYPE_CHECKING:
    from fasti.broker.service import Service


def _bind(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic=str, pattern=str, target=str)
    created = service.command(Bind(**fields), caller).value
    # Whoever produces next by this broker finds it known.
    service.routes.refresh(fields["topic"])
    return {"created": bool(created)}, []


def _unbind(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic=str, pattern=str, target=str)
    service.command(Unbind(**fields), caller)
    service.routes.refresh(fields["topic"])
    return {}, []


def _bindings(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic=str)
    _, bindings = service.command(ReadBindings(fields["topic"])).value
    told = [{"pattern": pattern, "target": target} for pattern, target in bindings]
    return {"bindings": told}, []


ACTIONS: dict[str, Action] = {
    "bind": of_catalogue(_bind),
    "unbind": of_catalogue(_unbind),
    "bindings": _bindings,
}
TRANSACTION_PARTS: dict[str, PartOf] = {}
