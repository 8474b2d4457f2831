"""A worker that counts up the values of a few keys by compare-and-set, and reads them.

`increment` is told before it is asked, with the version that is to be replaced; `incremented` when that was
answered ok, `increment_unknown` when there was no answer, which means either. A conflict is another worker's
increment, or an own one that had no answer. `read` tells which version a read saw, and when it began.
"""

from __future__ import annotations

import fasti
from fasti.errors import FastiError
from tests.integration.trouble.facts import monotonic_us
from tests.integration.trouble.worker import Life

KEYS = 8


class Counter:
    def __init__(self, life: Life) -> None:
        self.life, self.random = life, life.random
        self.client = life.connect()
        self.entries = self.client.kv(life.option("topic", "k"))
        self.pause_s = life.option("pause_ms", 0) / 1000

    def run(self) -> None:
        while not self.life.stopping.is_set():
            key = f"counter-{self.random.randrange(KEYS)}"
            try:
                self._increment(key, self._read(key))
            except FastiError as error:
                if not error.retryable:
                    raise
                self.life.tell("read_failed", key=key, code=error.code)
            self.life.stopping.wait(self.pause_s)
        self.client.close()
        self.life.tell("end")

    def _read(self, key: str) -> fasti.Entry | None:
        began = monotonic_us()
        entry = self.entries.get(key)
        version, value = (0, 0) if entry is None else (entry.version, int(entry.value))
        self.life.tell("read", key=key, version=version, value=value, began=began)
        return entry

    def _increment(self, key: str, entry: fasti.Entry | None) -> None:
        version, value = (0, 0) if entry is None else (entry.version, int(entry.value))
        self.life.tell("increment", key=key, version=version)
        try:
            outcome = self.entries.put(key, b"%d" % (value + 1), version=version)
        except FastiError as error:
            if not error.retryable:
                raise
            self.life.tell("increment_unknown", key=key, version=version, code=error.code)
            return
        if outcome.ok:
            self.life.tell("incremented", key=key, version=outcome.version, value=value + 1)
        else:
            self.life.tell("not_incremented", key=key, status=outcome.status)


if __name__ == "__main__":
    Counter(Life()).run()
