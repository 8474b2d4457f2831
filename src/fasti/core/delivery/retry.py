"""How long a failed message waits before its next attempt.

Jitter comes from the message's id and attempt: two messages that fail together come back apart,
and the same message always comes back at the same moment, whoever works it out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.index import mix
from fasti.model import RetryPolicy

Int64s = NDArray[np.int64]


def retry_delays(policy: RetryPolicy, ids: Int64s, attempts: NDArray[np.uint16]) -> Int64s:
    """The delay of each message in microseconds, after `attempts` deliveries (at least one)."""
    exponent = np.minimum(attempts.astype(np.float64) - 1, 64)
    grown = policy.base_us * np.power(float(policy.factor), exponent)
    capped = np.minimum(grown, float(policy.limit_us))
    seed = ids ^ (attempts.astype(np.int64) << 52)
    spread = (mix(seed) >> np.uint64(11)).astype(np.float64) / float(1 << 53)
    return (capped * (1.0 - policy.jitter * spread)).astype(np.int64)
