"""The SDK for asyncio: the names of the synchronous one, with `await` where it waits.

    import fasti.aio

    async with fasti.aio.connect("fasti://127.0.0.1:7170") as client:
        await client.create_topic("emails")
        receipt = await client.producer("emails").send(b"hello", delay="5m")
        print((await receipt).id)
        async for message in client.consumer("emails"):
            await handle(message.payload)
            message.ack()

Arrow Flight has no asyncio client, so this stands on the synchronous SDK and its threads: they send,
receive and keep leases alive whatever the event loop does; results reach the loop in batches.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fasti.aio.bindings import Bindings
from fasti.aio.changes import Changes
from fasti.aio.client import Client, connect
from fasti.aio.consumer import Consumer
from fasti.aio.groups import Groups
from fasti.aio.kv import KeyValues
from fasti.aio.log import Log
from fasti.aio.message import Batch, Message
from fasti.aio.messages import Messages
from fasti.aio.producer import Producer
from fasti.aio.reader import Reader
from fasti.aio.receipts import PendingBatch, Receipt
from fasti.aio.schedules import Schedules
from fasti.aio.stale import StaleKeyValues, StaleMessages
from fasti.aio.transaction import Transaction

if TYPE_CHECKING:
    from fasti.app.aio import App as App

__all__ = [
    "App",
    "Batch",
    "Changes",
    "Bindings",
    "Client",
    "Consumer",
    "Groups",
    "Log",
    "KeyValues",
    "Message",
    "Messages",
    "PendingBatch",
    "Producer",
    "Reader",
    "Receipt",
    "Schedules",
    "StaleKeyValues",
    "StaleMessages",
    "Transaction",
    "connect",
]


def __getattr__(name: str) -> Any:
    # Apps stand on the SDK, which knows nothing of them.
    if name == "App":
        return import_module("fasti.app.aio").App
    raise AttributeError(f"module 'fasti.aio' has no attribute {name!r}")
