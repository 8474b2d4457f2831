"""A position belongs to a shard and to a life of its journal, and its text says both."""

from __future__ import annotations

import pytest

from fasti.client.changes import Position
from fasti.errors import InvalidArgument
from fasti.protocol.feed_name import FeedName, is_nameless

TEXT = "0.9f3c01d2ab45e678"


def test_a_name_as_text_and_back() -> None:
    assert FeedName.parse(TEXT) == FeedName("0", "9f3c01d2ab45e678")
    assert str(FeedName.parse(TEXT)) == TEXT
    assert Position.parse(f"{TEXT}:97") == Position(TEXT, 97)
    assert str(Position(TEXT, 97)) == f"{TEXT}:97"


@pytest.mark.parametrize("text", ["", "0", "0.", ".9f3c01d2ab45e678", "0.9F3C01D2AB45E678", "a:b"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        FeedName.parse(text)
    assert not is_nameless(text)


def test_positions_of_older_versions_are_known_and_refused_with_what_to_do() -> None:
    assert is_nameless("9f3c01d2ab45e678")
    with pytest.raises(InvalidArgument, match="did not name the shard: begin anew"):
        Position.parse("9f3c01d2ab45e678:97")
