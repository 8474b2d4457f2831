"""Fasti: a persistent, time-ordered message queue.

    import fasti

    with fasti.connect("fasti://127.0.0.1:7170") as client:
        client.create_topic("emails")
        client.producer("emails").send(b"hello", delay="5m")

Names are loaded when they are first used, so that importing the package is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fasti.app.app import App as App
    from fasti.app.verdicts import Reject as Reject
    from fasti.app.verdicts import Retry as Retry
    from fasti.client.batch import Batch as Batch
    from fasti.client.bindings import Bindings as Bindings
    from fasti.client.bulk import BulkOutcomes as BulkOutcomes
    from fasti.client.calls import Answer as Answer
    from fasti.client.changes import Changes as Changes
    from fasti.client.changes import Position as Position
    from fasti.client.client import Client as Client
    from fasti.client.client import connect as connect
    from fasti.client.clock_info import ClockInfo as ClockInfo
    from fasti.client.consumer import Consumer as Consumer
    from fasti.client.consumers import ConsumerInfo as ConsumerInfo
    from fasti.client.dead import DeadOutcomes as DeadOutcomes
    from fasti.client.failures import Failure as Failure
    from fasti.client.groups import Groups as Groups
    from fasti.client.kv import KeyValues as KeyValues
    from fasti.client.log import Log as Log
    from fasti.client.log_message import LogMessage as LogMessage
    from fasti.client.message import Message as Message
    from fasti.client.messages import Messages as Messages
    from fasti.client.outcomes import Outcome as Outcome
    from fasti.client.outcomes import Outcomes as Outcomes
    from fasti.client.producer import Producer as Producer
    from fasti.client.reader import Reader as Reader
    from fasti.client.receipts import Receipt as Receipt
    from fasti.client.schedules import Schedules as Schedules
    from fasti.client.stale import Stale as Stale
    from fasti.client.stale import StaleKeyValues as StaleKeyValues
    from fasti.client.stale import StaleMessages as StaleMessages
    from fasti.client.topics import Backoff as Backoff
    from fasti.client.topics import Topic as Topic
    from fasti.client.transaction import Transaction as Transaction
    from fasti.errors import FastiError as FastiError

_HOMES = {
    "Answer": "fasti.client.calls",
    "App": "fasti.app.app",
    "Backoff": "fasti.client.topics",
    "Batch": "fasti.client.batch",
    "Bindings": "fasti.client.bindings",
    "Changes": "fasti.client.changes",
    "Client": "fasti.client.client",
    "Consumer": "fasti.client.consumer",
    "BulkOutcomes": "fasti.client.bulk",
    "DeadOutcomes": "fasti.client.dead",
    "Failure": "fasti.client.failures",
    "FastiError": "fasti.errors",
    "KeyValues": "fasti.client.kv",
    "Groups": "fasti.client.groups",
    "Log": "fasti.client.log",
    "LogMessage": "fasti.client.log_message",
    "Message": "fasti.client.message",
    "Messages": "fasti.client.messages",
    "Outcome": "fasti.client.outcomes",
    "Outcomes": "fasti.client.outcomes",
    "Position": "fasti.client.changes",
    "Producer": "fasti.client.producer",
    "Reader": "fasti.client.reader",
    "Receipt": "fasti.client.receipts",
    "Reject": "fasti.app.verdicts",
    "Retry": "fasti.app.verdicts",
    "Schedules": "fasti.client.schedules",
    "ClockInfo": "fasti.client.clock_info",
    "ConsumerInfo": "fasti.client.consumers",
    "Stale": "fasti.client.stale",
    "StaleKeyValues": "fasti.client.stale",
    "StaleMessages": "fasti.client.stale",
    "Topic": "fasti.client.topics",
    "Transaction": "fasti.client.transaction",
    "connect": "fasti.client.client",
}
_MODULES = ("aio", "errors", "model", "testing")

__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = import_module(f"fasti.{name}")
    elif name == "__version__":
        from importlib.metadata import version

        value = version("fasti")
    else:
        raise AttributeError(f"module 'fasti' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
