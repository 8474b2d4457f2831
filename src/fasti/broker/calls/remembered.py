"""Calls that choose their messages themselves, made again: what they were answered is looked for first.

By then other messages would fit, or none: those that the call has changed are gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fasti.broker.caller import Caller
from fasti.core.command import Command
from fasti.core.numbered.commands import Numbered, Recall
from fasti.core.replies import Done

if TYPE_CHECKING:
    from fasti.broker.service import Service


def recall(service: Service, caller: Caller) -> Any:
    """What a call was answered the first time; None if it did not come, or this is the first time."""
    if caller.call is None or not caller.call.age_us:
        return None
    reply = service.command(Recall(caller.call))
    return None if isinstance(reply, Done) else reply


def change_chosen(service: Service, command: Command, caller: Caller) -> Any:
    """The reply to a command on messages that the call has chosen, to be found by `recall`."""
    if caller.call is not None:
        command = Numbered(command, caller.call, chosen=True)
    return service.command(command)
