"""What the scheduler did since the start, for metrics. Written by its thread, read by any."""

from __future__ import annotations

from fasti.broker.metrics.counts import Distribution

_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class FireCounts:
    """Counts since the broker started."""

    def __init__(self) -> None:
        # Occurrences that were missed because no broker ran, or that a policy let pass.
        self.misfired = 0
        self.failed = 0
        # Of those, because the target was not there or takes no messages of schedules.
        self.target_missing = 0
        # From an occurrence until its message was durable; 0 for those emitted ahead.
        self.late = Distribution(_BOUNDS_S)
