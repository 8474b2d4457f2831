"""What has become durable, for those who follow: log readers and watchers.

The committer's thread tells (`durable`, `reset`); any thread waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from fasti.core.replies import Frame


class Feed:
    """One per shard."""

    def durable(self, frames: Sequence[Frame]) -> None:
        """These are in the journal, in this order."""

    def reset(self) -> None:
        """The engine was dropped: what is durable is what the journal has."""
