"""What became of what a consumer gave back: who waits is told, the rest goes to its failures.

Any thread. Beside a session, returns go here as actions, in the caller's thread.
"""

from __future__ import annotations

import logging

from fasti.client.failures import Failures, described
from fasti.client.outcomes import Outcomes
from fasti.client.returns import Return, merged
from fasti.client.transport import Header, Transport
from fasti.errors import FastiError

logger = logging.getLogger("fasti.client")


class Settling:
    """Of one consumer. `header` names its topic, and its group if it has one.

    The broker takes at most `rows_max` rows at a time.
    """

    def __init__(
        self, transport: Transport, header: Header, failures: Failures, rows_max: int
    ) -> None:
        self._transport = transport
        self._header = header
        self._failures = failures
        self._rows_max = rows_max

    def send(self, returns: list[Return], timeout: float | None = None) -> None:
        """Without a session, the same goes as actions, each within `timeout` seconds."""
        for each in [piece for all_ in merged(returns) for piece in all_.pieces(self._rows_max)]:
            fields = {name: value for name, value in each.fields().items() if name != "op"}
            try:
                reply, _ = self._transport.call(
                    each.op, self._header | fields, [each.batch()], timeout
                )
                outcomes = each.outcomes(reply)
            except FastiError as error:
                self.failed(each, error)
            else:
                self.succeeded(each, outcomes)

    def succeeded(self, returned: Return, outcomes: Outcomes) -> None:
        """It was answered; not every row need be ok."""
        returned.settle(outcomes)
        if outcomes.all_ok or returned.waiter is not None:
            return
        if returned.quiet:
            logger.info("%s of %r: %s", returned.op, self._header["topic"], outcomes)
            return
        failed = outcomes.failed.tolist()
        self._failures.counted(len(failed))
        keys = returned.keys()
        self._failures.add(
            returned.op, ({"key": keys[row], **outcomes[row].to_dict()} for row in failed)
        )

    def failed(self, returned: Return, error: FastiError) -> None:
        """It was refused as a whole, or nobody will answer it."""
        returned.settle(None, error)
        if returned.quiet or returned.waiter is not None:
            logger.info("%s of %r: %s", returned.op, self._header["topic"], error)
            return
        self._failures.counted(returned.rows)
        ids = [int(each) for run, rows in returned.segments for each in run.ids[rows]]
        self._failures.add(
            returned.op,
            (
                {"id": each, "key": key, **described(error)}
                for each, key in zip(ids, returned.keys(), strict=True)
            ),
        )
