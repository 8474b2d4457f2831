"""Which broker leads which shard, and which ones stand by: weighted rendezvous hashing.

Every broker ranks the members that it sees for every shard, by itself and with the same arithmetic:

    score(shard, member) = -weight / ln(u),   u = (XXH64("<shard>/<name>") >> 11 + 0.5) / 2^53

and sorts by score, the highest first. Then:

- The first leads, the next `standbys` of them stand by. Rank r waits r × 300 ms before it stands as
  candidate, so that two rarely try at once. If they do, the stream decides.
- A member's score for a shard depends on nothing but itself. So a member that leaves moves only its own
  shards, to those that stood by for them; one that joins takes shards and moves none between others.
- Shards are spread by weight: a member of weight 2 leads twice as many as one of weight 1, on average.
  A member of weight 0 leads nothing and stands by for nothing (a broker that is being emptied).

Two brokers that see different members may both think that they rank first. That costs a take-over,
never safety: ranks are advice, the stream has the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite, log

from xxhash import xxh64_intdigest

RANK_WAIT_MS = 300
STANDBYS_MAX = 2


@dataclass(frozen=True)
class Ranking:
    """The members of one shard, the leader-to-be first."""

    names: tuple[str, ...]
    standbys: int

    @property
    def first(self) -> str | None:
        """Who should lead; None: nobody is there."""
        return self.names[0] if self.names else None

    @property
    def followers(self) -> tuple[str, ...]:
        """Who should stand by."""
        return self.names[1 : 1 + self.standbys]

    def rank(self, name: str) -> int | None:
        """0 for the first; None: not among them.

        Those behind the standbys have one as well: if all before them can't lead, they must.
        """
        return self.names.index(name) if name in self.names else None

    def wait_ms(self, name: str) -> int | None:
        """How long a member waits after a leader was lost, before it stands; None: it doesn't."""
        rank = self.rank(name)
        return None if rank is None else rank * RANK_WAIT_MS


def rank_members(shard: int, weights: Mapping[str, float], standbys: int = 1) -> Ranking:
    """The members of a shard by their scores; `weights` by the members' names."""
    if not 0 <= standbys <= STANDBYS_MAX:
        raise ValueError(f"standbys must be from 0 to {STANDBYS_MAX}, not {standbys}")
    able = [name for name, weight in weights.items() if check_weight(name, weight) > 0]
    # Equal scores don't come about, but if they did, all brokers would have to agree.
    able.sort(key=lambda name: (-score(shard, name, weights[name]), name))
    return Ranking(tuple(able), standbys)


def place_shards(
    shards: Iterable[int], weights: Mapping[str, float], standbys: int = 1
) -> dict[int, Ranking]:
    """The rankings of many shards."""
    return {shard: rank_members(shard, weights, standbys) for shard in shards}


def score(shard: int, name: str, weight: float) -> float:
    """How much a member wants a shard: higher is more."""
    drawn = (xxh64_intdigest(f"{shard}/{name}".encode()) >> 11) + 0.5
    return -weight / log(drawn / (1 << 53))


def check_weight(name: str, weight: float) -> float:
    """The weight. Raises ValueError unless it is a number that is not below 0."""
    if not isfinite(weight) or weight < 0:
        raise ValueError(f"the weight of {name} must be a number of at least 0, not {weight}")
    return weight
