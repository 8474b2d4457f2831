"""What answers for a process with shards that come and go: it is there when none is.

The actions about the process (`hello`, `clock`, `health`, ...) and streams of calls come here; each call on
such a stream goes on to the service of the shard that it names. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from fasti.broker.caller import Caller
from fasti.broker.calls import control, requests
from fasti.broker.calls.actions import ACTIONS
from fasti.broker.calls.call_stream import CallStream, Route
from fasti.broker.calls.requests import Answer
from fasti.broker.faults import Faults
from fasti.errors import FastiError, InvalidArgument, Unavailable

if TYPE_CHECKING:
    from fasti.broker.host import Host
    from fasti.broker.service import Service
    from fasti.broker.shared_parts import SharedParts
    from fasti.broker.shares import Shares

Header = dict[str, Any]

# About the process: they name no shard.
PROCESS_ACTIONS = frozenset(
    ("hello", "clock", "accept_clock", "health", "metrics", "cluster", "drain")
)


class Lobby:
    """One per process with several shards."""

    def __init__(self, host: Host, shared: SharedParts, shares: Shares) -> None:
        self.host, self.placement, self.shares = host, shares.placement, shares
        self.settings, self.limits = host.settings, host.settings.limits
        self.clock, self.threads, self.runtime = shared.clock, shared.threads, shared.runtime
        self.metrics = host.metrics
        self.faults = Faults(shared.runtime.clock)

    @property
    def stopping(self) -> bool:
        """Whether the process takes nothing new."""
        return self.host.stopping

    def call(
        self, caller: Caller, action: str, header: Header, parts: Sequence[pa.Table] = ()
    ) -> Answer:
        """Carries out an action about the process. Raises what the caller is to be told."""
        try:
            if action not in PROCESS_ACTIONS:
                raise InvalidArgument(f"{action!r} is not about the process", field="action")
            # These use nothing of a service that is not here as well.
            service = cast("Service", self)
            answer = ACTIONS[action](service, caller, requests.check_version(header), list(parts))
        except FastiError as error:
            self.metrics.refused(action, error.code, caller.name)
            raise
        control.log_done(action, caller, header, answer[0])
        return answer

    @contextmanager
    def call_stream(self, caller: Caller, descriptor: Header, route: Route) -> Iterator[CallStream]:
        """A stream of small calls, for as long as the block takes. `route` finds the service of each."""
        try:
            if self.stopping:
                raise Unavailable("the broker is stopping", retry_after_us=1_000_000)
            rest = requests.check_version(descriptor)
            rest.pop("call", None)
            opened = CallStream(route, caller, rest)
            self.shares.call_streams.take(caller)
        except FastiError as error:
            self.metrics.refused(CallStream.call, error.code, caller.name)
            raise
        try:
            yield opened
        finally:
            self.shares.call_streams.give_back(caller)
