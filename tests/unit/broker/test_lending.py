"""Memory that shards of one process lend to each other."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from fasti.broker.caller import EMBEDDED
from fasti.broker.lending import divide
from fasti.errors import Overloaded
from tests.shards.shards_rig import SETTINGS, close_host, open_host

SIZES = st.lists(
    st.tuples(st.integers(0, 1 << 34), st.integers(0, 1 << 34)), min_size=1, max_size=16
)


@given(st.integers(1 << 20, 1 << 36), SIZES)
def test_parts_never_exceed_the_budget(budget: int, shards: list[tuple[int, int]]) -> None:
    used, needs = [use for use, _ in shards], [need for _, need in shards]
    parts = divide(budget, used, needs)
    assert all(part >= use for part, use in zip(parts, used, strict=True))
    assert sum(parts) <= max(budget, sum(used))


def test_who_needs_more_gets_more() -> None:
    parts = divide(1000, [0, 400, 0, 0], [0, 400, 0, 0])
    assert parts[1] > 700
    assert min(parts) > 30, "the others can begin at once"


def test_a_shard_that_is_full_gets_what_others_do_not_use(tmp_path: Path) -> None:
    host = open_host(tmp_path / "data", 4)
    try:
        host.service(0).call(
            EMBEDDED, "create_topic", {"version": 1, "topic": "jobs", "settings": {"width": 1}}
        )
        lender, shards = host._lender, host.all_shards()
        assert lender is not None
        owner = next(shard for shard in shards if shard.engine.state.by_name["jobs"].own is None)
        service = host.service(owner.place.number)
        equal = SETTINGS.memory_bytes // 4
        rows = pa.table({"payload": pa.array([b"x"] * 20_000), "delay_us": [10**12] * 20_000})
        header = {"op": "produce", "topic": "jobs"}
        refused = 0
        for _ in range(60):
            try:
                reply, _ = service.call(
                    EMBEDDED, "transaction", {"version": 1, "commands": [header]}, [rows]
                )
                assert reply["committed"]
            except Overloaded:
                refused += 1
            lender._poll()
            assert sum(shard.engine.memory.budget_bytes for shard in shards) <= (
                SETTINGS.memory_bytes
            )
            if owner.engine.memory.used_bytes > 2 * equal:
                break
        assert owner.engine.memory.used_bytes > 2 * equal, refused
        used = sum(shard.engine.memory.used_bytes for shard in shards)
        assert used <= SETTINGS.memory_bytes
    finally:
        close_host(host)


def test_what_standbys_hold_is_not_lent(tmp_path: Path) -> None:
    host = open_host(tmp_path / "data", 2)
    try:
        lender, shards = host._lender, host.all_shards()
        assert lender is not None
        host.standby_bytes = lambda: SETTINGS.memory_bytes // 2
        lender._poll()
        lent = sum(shard.engine.memory.budget_bytes for shard in shards)
        assert lent <= SETTINGS.memory_bytes // 2
    finally:
        close_host(host)
