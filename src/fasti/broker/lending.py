"""One memory budget for all shards of a process, lent to those that need it.

Each shard begins with an equal part, and all are given new ones when one comes or leaves. Now and then the lender looks at what each uses, and when one comes
near to its part, or had to refuse something, all are given new ones: what they use, and of what is free a
share by need. Parts that shrink are told first, and what their shards really have then is what the others
can't get; so all parts together, and all that is used, never exceed the budget. An engine takes its part as
an input (`SetMemory`) that is not journaled.

`divide` is arithmetic alone. The lender is a step with a thread around it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fasti.broker.threads import Poller, Threads
from fasti.core.queries import SetMemory
from fasti.errors import FastiError

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

_log = logging.getLogger("fasti.broker.memory")

_LOOK_S = 0.5
# A shard that uses more than this share of its part is hungry.
_HUNGRY = 0.5
# Of the equal part: so much counts as need where nothing is used.
_LEAST_NEED = 0.25
# Parts that would change by less of the budget stay.
_WORTHWHILE = 1 / 64
# The most that is waited for a shard to take its part.
_ANSWER_S = 5.0


def divide(budget_bytes: int, used_bytes: Sequence[int], needs: Sequence[int]) -> list[int]:
    """Parts for shards that use and need so much: together not above the budget, as far as what is used
    allows.
    """
    free_bytes = max(0, budget_bytes - sum(used_bytes))
    least = max(1, int(budget_bytes / len(used_bytes) * _LEAST_NEED))
    weights = [need + least for need in needs]
    total = sum(weights)
    return [
        used + free_bytes * weight // total
        for used, weight in zip(used_bytes, weights, strict=True)
    ]


class Lender:
    """Of one process. `start` and `stop` are for one thread."""

    def __init__(self, threads: Threads, budget_bytes: int, shards: Sequence[Shard]) -> None:
        self._whole_bytes, self._shards = budget_bytes, shards
        # What the process holds beside its shards: standbys of others.
        self.beside_bytes: Callable[[], int] = lambda: 0
        # Whether they are others than when the parts were given.
        self._changed = False
        self._refusals: dict[Shard, int] = {}
        self._poller = Poller(threads, "fasti-memory", self._poll, parks=False)

    @property
    def _budget_bytes(self) -> int:
        return max(0, self._whole_bytes - self.beside_bytes())

    def start(self) -> None:
        """Lends by what the shards hold already, and from now on."""
        self.lend([shard.engine.memory.used_bytes for shard in self._shards])
        self._poller.start()

    def stop(self) -> None:
        """Parts stay as they are."""
        self._poller.stop()

    def divide_among(self, shards: Sequence[Shard]) -> None:
        """A shard has come or left: these share the budget from now on. Any thread."""
        self._shards, self._changed = shards, True
        self._poller.wake()

    def _poll(self) -> float:
        shards, hungry, self._changed = self._shards, self._changed, False
        self._refusals = {shard: self._refusals.get(shard, 0) for shard in shards}
        used = [shard.engine.memory.used_bytes for shard in shards]
        needs = list(used)
        for place, shard in enumerate(shards):
            memory = shard.engine.memory
            if memory.refusals != self._refusals[shard]:
                # It needs more than its part, which may be small.
                self._refusals[shard] = memory.refusals
                needs[place] = max(needs[place], 2 * memory.budget_bytes)
                hungry = True
            hungry = hungry or used[place] > memory.budget_bytes * _HUNGRY
        # Standbys have grown into what was lent.
        lent_bytes = sum(shard.engine.memory.budget_bytes for shard in shards)
        hungry = hungry or lent_bytes > self._budget_bytes + self._whole_bytes * _WORTHWHILE
        # Unless they are others by now: then it looks again at once.
        if hungry and shards is self._shards:
            self.lend(needs)
        return _LOOK_S

    def lend(self, needs: Sequence[int]) -> None:
        """Divides anew, by what each needs."""
        shards, budget_bytes = self._shards, self._budget_bytes
        if len(shards) != len(needs) or not shards:
            return
        used = [shard.engine.memory.used_bytes for shard in shards]
        parts = divide(budget_bytes, used, needs)
        least = int(budget_bytes * _WORTHWHILE)
        current = [shard.engine.memory.budget_bytes for shard in shards]
        if all(abs(part - now) <= least for part, now in zip(parts, current, strict=True)):
            return
        shrinking = [place for place, part in enumerate(parts) if part < current[place]]
        growing = [place for place, part in enumerate(parts) if part > current[place]]
        free_bytes = budget_bytes - sum(current)
        for place in shrinking:
            free_bytes += current[place] - self._set(shards[place], parts[place], current[place])
        for place in growing:
            more = min(parts[place] - current[place], free_bytes)
            if more > 0:
                self._set(shards[place], current[place] + more, current[place])
                # Whether or not it took it: it may.
                free_bytes -= more

    def _set(self, shard: Shard, part: int, now: int) -> int:
        """What a shard has then, at most: if it doesn't answer, the larger one."""
        shard.memory_bytes = part
        try:
            use = shard.call(SetMemory(part), _ANSWER_S).value
        except (FastiError, TimeoutError) as error:
            _log.debug("shard %s did not take its part of the memory: %s", shard.name, error)
            return max(part, now)
        return max(int(use.budget_bytes), int(use.used_bytes))
