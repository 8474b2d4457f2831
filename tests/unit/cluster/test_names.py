"""Names of streams and subjects."""

from __future__ import annotations

import pytest

from fasti.cluster.names import ShardNames, check_broker, from_token, to_token
from fasti.errors import InvalidArgument


@pytest.mark.parametrize("name", ["a", "7-12.rows", "runs/1.a=b/c_d-e.f", "a/d.s/s"])
def test_a_blocks_name_comes_back_from_its_token(name: str) -> None:
    token = to_token(name)
    assert not set(token) & set("./*> ")
    assert from_token(token) == name


def test_everything_begins_with_the_clusters_name() -> None:
    names = ShardNames.of("c1", 4)
    assert (names.journal_stream, names.blocks_stream, names.pointer_stream) == (
        "c1-j-4",
        "c1-b-4",
        "c1-p-4",
    )
    assert names.part_subject("block", "1-2.rows", 0) == "c1.b.4.block.1-2%drows.0"


@pytest.mark.parametrize("cluster", ["", "a.b", "a b", "a*", "x" * 65])
def test_a_cluster_has_a_name_that_subjects_can_have(cluster: str) -> None:
    with pytest.raises(InvalidArgument):
        ShardNames.of(cluster, 0)
    with pytest.raises(InvalidArgument):
        check_broker("b" * 256)
