"""What the log says of handlers that did not end well: which message, why, and what becomes of it.

Every line has the message's topic, id and key. A failure that was the last one is an error and says
that the message is dead now.
"""

from __future__ import annotations

import logging
from typing import Any

from fasti.app.verdicts import Verdict

logger = logging.getLogger("fasti.app")


def report(
    label: str, message: Any, verdict: Verdict, error: BaseException | None = None, trace: str = ""
) -> None:
    """Logs how a handler ended. `trace` is the text of one from another process."""
    text = f"{label} {_what(verdict)} {message!r}: {verdict.reason}"
    dead = death(message, verdict)
    if dead:
        text += f"; {dead}"
    if verdict.op == "nack" and not verdict.retry:
        text += f"\n{trace}" if trace else ""
        cause = error if error is not None and not verdict.stop else None
        logger.log(logging.ERROR if dead else logging.WARNING, "%s", text, exc_info=cause)
    else:
        logger.log(logging.ERROR if dead else logging.INFO, "%s", text)


def _what(verdict: Verdict) -> str:
    if verdict.retry:
        return "asked to retry"
    return {"release": "gave back", "reject": "rejected"}.get(verdict.op, "failed on")


def death(message: Any, verdict: Verdict) -> str:
    """That the message is dead by this verdict; empty if it isn't."""
    if verdict.op == "reject":
        return "it is dead now"
    limit = message.attempts_max
    if verdict.op != "nack" or not limit or message.attempts < limit:
        return ""
    return f"it is dead now, after {message.attempts} attempt{'s' * (message.attempts != 1)}"
