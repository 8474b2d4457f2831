"""How far gold and the audit are: a file beside the gold tables, which needs no Spark."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from fasti.pipeline.files import replace_text

if TYPE_CHECKING:
    from fasti.pipeline.lake import Lake


@dataclass
class LakeState:
    """How far gold and the audit are in each shard's feed, and how far they saw."""

    gold: dict[str, int] = field(default_factory=dict)
    audit: dict[str, int] = field(default_factory=dict)
    # The moment up to which silver knows everything, in microseconds.
    as_of_us: int = 0
    # When the last audit was done, and over how many transitions and messages since the lake began.
    audited_us: int = 0
    transitions: int = 0
    messages: int = 0
    # Topics whose counts were compared with the broker's, and at which position; of several shards at
    # which of each.
    compared: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, lake: Lake) -> LakeState:
        """As it was saved last."""
        place = lake.root / "gold" / "state.json"
        return cls(**json.loads(place.read_text())) if place.exists() else cls()

    def save(self, lake: Lake) -> None:
        """Whole or not at all."""
        place = lake.root / "gold" / "state.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        replace_text(place, json.dumps(asdict(self)))
