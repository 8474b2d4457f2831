"""Control calls leave a line in the log: what was done, by whom, and what came out.

Everything that isn't the daily work of producers and consumers, and not only a look, is a control
call: topics and their settings, dead letters sent again or purged, changes by filter, groups, schedules,
bindings, sinks, leases taken back. What is new among the actions is one, until it is named here.

A call that was refused has changed nothing, and is counted by `fasti_refusals_total` instead; one
whose outcome is unknown is logged as that.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from fasti.broker.caller import Caller
from fasti.broker.logs import fields
from fasti.errors import FastiError, OutcomeUnknown
from fasti.protocol.numbered import ONCE

_log = logging.getLogger("fasti.broker.control")

# What only looks, and what producers, consumers, sinks and readers do all day.
_DAILY = frozenset(
    (
        *("hello", "clock", "health", "metrics", "cluster"),
        *("topic", "topics", "get", "count", "forecast"),
        *("bindings", "consumers", "count_dead", "dead", "feed", "groups", "kv_describe", "kv_get"),
        *("log", "offsets", "preview", "references", "schedules", "scrub_status", "sinks"),
        *("update", "move", "cancel", "ack", "nack", "reject", "release", "extend", "reply"),
        *("kv_put", "kv_delete", "transaction"),
        *("publish", "publish_batch", "drop_stage", "drop_stages"),
        *("take_snapshot", "drop_snapshot"),
    )
)
# The inboxes of callers come and go with their clients.
_INBOX = "_inbox."
_TEXT_MAX = 200
# Of requests: says nothing about what was done.
_LEFT_OUT = ("version", "dry_run", ONCE)


def is_control(action: str) -> bool:
    """Whether a call of it leaves a line."""
    return action not in _DAILY


def log_done(action: str, caller: Caller, header: Mapping[str, Any], reply: Any) -> None:
    """By the service, once the call is carried out. What changed nothing leaves no line."""
    if not is_control(action):
        return
    changed_nothing = False in (reply.get("created"), reply.get("changed"))
    # A piece of a change by filter that fitted nothing, or dead letters of which there were none.
    changed_nothing |= reply.get("outcomes") == {} or reply.get("status") == []
    if header.get("dry_run") or changed_nothing or _is_inbox(header):
        return
    _write(action, caller, header, _outcome(reply))


def log_failed(action: str, caller: Caller, header: Mapping[str, Any], error: FastiError) -> None:
    """By the service, for a call that raised."""
    if is_control(action) and isinstance(error, OutcomeUnknown):
        _write(action, caller, header, error.code)


def _write(action: str, caller: Caller, header: Mapping[str, Any], outcome: str) -> None:
    asked = {
        name: _short(value)
        for name, value in header.items()
        if name not in _LEFT_OUT and value not in ("", None)
    }
    told = {**asked, **caller.log_fields(), "outcome": outcome}
    _log.info("control: %s", action, extra=fields(**told))


def _is_inbox(header: Mapping[str, Any]) -> bool:
    return str(header.get("topic", "")).startswith(_INBOX)


def _outcome(reply: Mapping[str, Any]) -> str:
    """How many rows came out how, or the numbers of the reply."""
    if isinstance(reply.get("status"), list):
        counts: dict[str, int] = {}
        for word, count in reply["status"]:
            counts[word] = counts.get(word, 0) + count
        return _pairs(counts)
    if isinstance(reply.get("outcomes"), dict):
        return _pairs(reply["outcomes"])
    numbers = {name: value for name, value in reply.items() if isinstance(value, (bool, int))}
    return _pairs(numbers)


def _pairs(counts: Mapping[str, Any]) -> str:
    told = " ".join(f"{name}:{str(value).lower()}" for name, value in counts.items())
    return told or "ok"


def _short(value: Any) -> Any:
    """A value of a request as a field: long ones are cut, so that nobody fills the log with one."""
    if isinstance(value, (bool, int, float)):
        return value
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if not text.isprintable():
        # A line of the log is one line, whatever a client calls itself.
        text = json.dumps(text)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
