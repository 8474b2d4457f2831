"""A cluster's charter: written once, whoever comes first, and read by all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from fasti.cluster.charter import SHARDS, Charter, settle_charter
from fasti.cluster.nats import NatsConnection, Refused, StoredMessage
from fasti.errors import FastiError, InvalidArgument, NewerFormat, TimedOut, Unavailable


class OneStream:
    """As much of NATS as a charter needs. `before_publish` may write first, or raise."""

    def __init__(self) -> None:
        self.stored: bytes | None = None
        self.streams: list[dict[str, Any]] = []
        self.published = 0
        self.before_publish: Callable[[], None] = lambda: None
        self.after_publish: Callable[[], None] = lambda: None

    def ensure_stream(self, config: dict[str, Any]) -> None:
        self.streams.append(config)

    def get(self, stream: str, *, subject: str) -> StoredMessage | None:
        assert (stream, subject) == ("c-c", "c.c")
        return None if self.stored is None else StoredMessage(1, subject, self.stored)

    def publish(self, subject: str, data: bytes, *, last_subject_sequence: int) -> int:
        assert (subject, last_subject_sequence) == ("c.c", 0)
        self.published += 1
        self.before_publish()
        if self.stored is not None:
            raise Refused("wrong last sequence: 1", 10071)
        self.stored = data
        self.after_publish()
        return 1


def settle(nats: OneStream, shards: int | None, identity: str, replicas: int = 1) -> Charter:
    return settle_charter(cast(NatsConnection, nats), "c", shards, replicas, identity)


def test_the_first_writes_and_the_others_read() -> None:
    nats = OneStream()
    assert settle(nats, 4, "first") == Charter(4, "first")
    assert settle(nats, 4, "second") == Charter(4, "first")
    assert settle(nats, None, "third") == Charter(4, "first")
    assert nats.published == 1


def test_shards_that_nobody_asked_for() -> None:
    assert settle(OneStream(), None, "i").shards == SHARDS


def test_another_number_of_shards_is_refused_with_both_numbers() -> None:
    nats = OneStream()
    settle(nats, 4, "first")
    with pytest.raises(InvalidArgument, match="made with 4 shards, and shards is 5") as refused:
        settle(nats, 5, "second")
    assert refused.value.details["field"] == "shards"
    assert settle(nats, 4, "third") == Charter(4, "first")


def test_of_two_that_begin_at_once_one_is_refused_and_reads() -> None:
    nats = OneStream()

    def another() -> None:
        nats.stored = Charter(4, "other").encode()

    nats.before_publish = another
    assert settle(nats, 4, "mine") == Charter(4, "other")
    assert nats.published == 1


@pytest.mark.parametrize("error", [TimedOut("late"), Unavailable("away")])
def test_an_answer_that_was_lost_is_found_by_reading(error: FastiError) -> None:
    nats = OneStream()

    def lose() -> None:
        raise error

    nats.after_publish = lose
    assert settle(nats, 4, "mine") == Charter(4, "mine")
    assert nats.published == 1


def test_a_stream_that_takes_nothing_is_given_up() -> None:
    nats = OneStream()

    def refuse() -> None:
        raise Unavailable("away")

    nats.before_publish = refuse
    with pytest.raises(Unavailable, match="takes no message, and has none"):
        settle(nats, 4, "mine")


def test_the_stream_keeps_one_message_for_ever() -> None:
    nats = OneStream()
    settle(nats, 4, "mine", replicas=3)
    (config,) = nats.streams
    assert config["num_replicas"] == 3
    assert (config["max_msgs_per_subject"], config["discard"]) == (1, "new")
    assert config["discard_new_per_subject"]
    assert config["deny_delete"]


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*", ">"])
def test_what_is_no_name_of_a_cluster(name: str) -> None:
    nats = OneStream()
    with pytest.raises(InvalidArgument):
        settle_charter(cast(NatsConnection, nats), name, 4, 1, "i")
    assert nats.streams == []


def test_a_charter_is_read_as_it_was_written() -> None:
    assert Charter.decode(Charter(7, "i").encode()) == Charter(7, "i")


def test_a_charter_of_a_newer_fasti_is_refused() -> None:
    with pytest.raises(NewerFormat):
        Charter.decode(b'{"format": 2, "shards": 4, "identity": "i"}')
