"""Pending messages changed by filter: a bounded piece of them a call, and a cursor to go on from.

A call looks at the next messages that fit, in id order, and cancels or moves those. Each is changed
in the version in which it was found: one that somebody else changed in between answers `conflict`
and stays as that one left it. One that a consumer has answers `leased`. What is produced meanwhile
with a lower id is not met, and a message that a move brings into the range again is met once.

Handler threads; everything that changes goes through the shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.listing import check_prefix, only_rows, with_prefix
from fasti.broker.calls.remembered import change_chosen, recall
from fasti.broker.calls.requests import Action, Answer, Header, PartOf, Parts, check_own, none
from fasti.broker.calls.tally import Tally, last_id
from fasti.core import commands as co
from fasti.core.replies import Messages
from fasti.errors import InvalidArgument
from fasti.model import DUE_MAX_US, State

if TYPE_CHECKING:
    from fasti.broker.service import Service

_PIECE_ROWS = 4096
_STATES = ("scheduled", "ready", "leased")
_FILTER: Header = {
    "topic": str,
    "owner": "",
    "of_owner": "",
    "state": "",
    "due_from_us": None,
    "due_to_us": None,
    "key_prefix": "",
    "after_id": 0,
    "limit": _PIECE_ROWS,
    "dry_run": False,
}


def _cancel_where(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = _checked(service, header)
    return _changed(
        service, caller, "cancel", fields, lambda found: co.Cancel(*_named(fields, found))
    )


def _move_where(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = _checked(service, header, due_us=None, delay_us=None, by_us=None)
    given = [name for name in ("due_us", "delay_us", "by_us") if fields[name] is not None]
    if len(given) != 1:
        raise InvalidArgument("a move needs one of due_us, delay_us and by_us", field="due_us")
    moment = requests.integer(fields, given[0])
    if given[0] == "by_us" and moment is not None and abs(moment) > DUE_MAX_US:
        raise InvalidArgument("by_us is out of range", field="by_us", limit=DUE_MAX_US)

    def command(found: Messages) -> co.Move:
        topic, target = _named(fields, found)
        if given[0] == "by_us":
            due_us = np.clip(found.columns["due_us"] + moment, 0, DUE_MAX_US)
            return co.Move(topic, target, co.When(due_us=due_us))
        return co.Move(topic, target, co.When(**{given[0]: moment}))

    return _changed(service, caller, "move", fields, command)


def _changed(service: Service, caller: Caller, op: str, fields: Header, make: Any) -> Answer:
    if (known := recall(service, caller)) is not None:
        return Tally.of(known).to_dict(last_id(known)), []
    found = _page(service, fields)
    tally = Tally()
    if len(found.ids):
        command = make(found)
        command.versions = found.columns["version"].astype(np.int64)
        command.owner, command.dry_run = fields["owner"], fields["dry_run"]
        reply = change_chosen(service, command, caller)
        if not fields["dry_run"]:
            service.mutation(op, fields["topic"], reply)
        tally.add(found.ids, reply.status)
    return tally.to_dict(found.next_after_id), []


def _named(fields: Header, found: Messages) -> tuple[str, co.Target]:
    return fields["topic"], co.Target(ids=found.ids)


def _checked(service: Service, header: Header, **more: Any) -> Header:
    fields = requests.checked(header, **_FILTER, **more)
    check_own(fields["topic"])
    if fields["limit"] < 1:
        raise InvalidArgument("limit must be at least 1", field="limit", limit=1)
    if fields["state"] and fields["state"] not in _STATES:
        known = ", ".join(_STATES)
        raise InvalidArgument(f"{fields['state']!r} is not one of {known}", field="state")
    check_prefix(service, fields["key_prefix"])
    return fields


def _page(service: Service, fields: Header) -> Messages:
    """The next messages that fit and can still be changed."""
    found: Messages = service.command(
        co.List(
            fields["topic"],
            fields["after_id"],
            min(fields["limit"], _PIECE_ROWS),
            requests.integer(fields, "due_from_us"),
            requests.integer(fields, "due_to_us"),
            fields["state"] or None,
            fields["of_owner"] or None,
        )
    )
    if len(found.ids):
        found = only_rows(found, found.columns["state"] != State.DEAD)
    if fields["key_prefix"]:
        found = with_prefix(service, fields["topic"], found, fields["key_prefix"])
    return found


ACTIONS: dict[str, Action] = {"cancel_where": _cancel_where, "move_where": _move_where}
TRANSACTION_PARTS: dict[str, PartOf] = {}
