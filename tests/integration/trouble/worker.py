"""What all workers share: their options, their orders, their end."""

from __future__ import annotations

import json
import os
import queue
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

# The facts keep the true clocks; whatever is imported behind the lie gets that.
from tests.integration.trouble.facts import Teller  # isort: skip
from tests.integration.trouble import lying_clock  # isort: skip

import fasti
from fasti.doors.without_pandas import hide_pandas_from_arrow

# No worker has a Series in its hands, and they start sooner.
hide_pandas_from_arrow()


class Life:
    """Options from the command line, orders from stdin. Without a parent there is no life."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = json.loads(sys.argv[1])
        self.tell = Teller(self.options["who"])
        self.random = random.Random(f"{self.options.get('seed', 0)}-{self.tell.who}")
        self.stopping = threading.Event()
        self.orders: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.on_stop: Callable[[], None] = lambda: None
        threading.Thread(target=self._hear, daemon=True).start()

    def option(self, name: str, default: Any = None) -> Any:
        return self.options.get(name, default)

    def connect(self) -> fasti.Client:
        given = {"timeout": self.options["timeout"]} if "timeout" in self.options else {}
        client = fasti.connect(self.options["address"], owner=self.option("owner", ""), **given)
        self.tell("ready")
        return client

    def _hear(self) -> None:
        for line in sys.stdin:
            word, _, number = line.strip().partition(" ")
            if word == "leap":
                lying_clock.leap(int(number))
                self.tell("leapt", by_s=int(number))
                continue
            self.orders.put(line.strip())
            if line.strip() == "stop":
                self.stopping.set()
                self.on_stop()
        if not self.stopping.is_set():
            os._exit(3)  # The test is gone.
