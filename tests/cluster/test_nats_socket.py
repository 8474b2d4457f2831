"""A socket of one's own beside nats-py, on a real server."""

from __future__ import annotations

import random

import pytest

from fasti.cluster.nats import NatsConnection, Refused
from fasti.cluster.nats_socket import StreamAppends, StreamReads
from fasti.errors import Unavailable
from tests.cluster.nats_rig import new_cluster

WAIT_S = 10.0


def test_what_one_publishes_the_other_reads_and_the_other_way_round(nats: NatsConnection) -> None:
    name = new_cluster()
    nats.ensure_stream(
        {
            "name": name,
            "subjects": [name],
            "num_replicas": 3,
            "storage": "file",
            "allow_direct": True,
        }
    )
    appends, reads = StreamAppends(nats, name), StreamReads(nats, name)
    noise = random.Random(1)
    contents = [noise.randbytes(size) for size in (0, 1, 100, 900_000, *[200] * 600, 1_000_000, 5)]
    for number, content in enumerate(contents):
        if number % 2:
            place = nats.publish(name, content, last_sequence=number)
        else:
            parts = content[:7], content[7:]
            place = appends.publish(name, parts, WAIT_S, last_sequence=number)
        assert place == number + 1
    with pytest.raises(Refused, match="wrong last sequence"):
        appends.publish(name, [b"late"], WAIT_S, last_sequence=3)
    found: list[bytes] = []
    while more := reads.read(len(found) + 1, 1 << 20, WAIT_S):
        assert [each.sequence for each in more] == [len(found) + n for n in range(1, len(more) + 1)]
        same = nats.read(name, len(found) + 1, 1 << 20, WAIT_S)
        assert [bytes(each.data) for each in more] == [each.data for each in same]
        found += [bytes(each.data) for each in more]
    assert found == contents
    with pytest.raises(Unavailable):
        StreamReads(nats, "none-of-that-name").read(1, 1 << 20, WAIT_S)
    for each in (appends, reads):
        each.close()
    with pytest.raises(Unavailable, match="closed"):
        reads.read(5, 1, WAIT_S)
    with pytest.raises(Unavailable, match="closed"):
        appends.publish(name, [b"late"], WAIT_S)
    nats.delete_stream(name)
