"""A stream of small calls: what an action would answer, without a call of gRPC for each.

Requests are carried out one after another, each by the thread that read it, which writes the answer:
nothing is handed over. A client with several calls under way has a stream for each. Only actions that
are `Quick` may be called here, and all else about them (checks, shares, metrics, the log) is as for
`do_action`, since both come to `Service.call`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import pyarrow as pa

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.actions import ACTIONS
from fasti.broker.calls.requests import Answer, Header, Quick
from fasti.errors import FastiError, InvalidArgument
from fasti.protocol.envelope import dump, pack, unpack
from fasti.protocol.problems import error_to_json


class Answers(Protocol):
    """What carries actions out: a service, or the lobby of a process."""

    def call(
        self, caller: Caller, action: str, header: Header, parts: Sequence[pa.Table] = ()
    ) -> Answer: ...


# Who answers a request: by its action and its header.
Route = Callable[[str, Header], Answers]
# All that travels is metadata.
SCHEMA = pa.schema([])
QUICK = sorted(name for name, action in ACTIONS.items() if isinstance(action, Quick))
_GREETING = dump({"actions": QUICK})


class CallStream:
    """One open stream, of one thread. Made by `Service.call_stream`."""

    call = "calls"
    greeting = _GREETING

    def __init__(self, route: Route, caller: Caller, descriptor: Header) -> None:
        requests.checked(descriptor)
        self._route, self._caller = route, caller

    def answer(self, body: pa.Buffer | None) -> bytes:
        """The answer to a request, which may be its error."""
        try:
            if body is None:
                raise InvalidArgument("a request is metadata, without a batch", field="body")
            header, parts = unpack(body, of_request=True)
            action = header.pop("action", None)
            if not isinstance(ACTIONS.get(action) if type(action) is str else None, Quick):
                raise InvalidArgument(f"{action!r} can't be called on a stream", field="action")
            answers = self._route(action, header)
            return pack(*answers.call(self._caller, action, header, parts))
        except FastiError as error:
            return pack({"error": error_to_json(error)})
