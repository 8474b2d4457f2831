"""A message that came alone: its values instead of a batch, under the same limits."""

from __future__ import annotations

import pytest

from fasti.core.keys import Rows
from fasti.errors import InvalidArgument
from fasti.model import Limits

SEED = (1, 2)


def test_it_says_the_same_as_a_batch_of_one_row() -> None:
    alone = Rows.single(b"hello", key="größe", content_type="text/plain", subject="a.b")
    batch = Rows.of([b"hello"], key=["größe"], content_type=["text/plain"], subject=["a.b"])
    assert alone.batch.equals(batch.batch)
    assert alone.names == batch.names
    assert (len(alone), len(alone.split())) == (1, 1)
    ours, theirs = alone.keys(SEED), batch.keys(SEED)
    assert ours is not None
    assert theirs is not None
    assert ours.hashes.tolist() == theirs.hashes.tolist()
    assert ours.routes.tolist() == theirs.routes.tolist()


def test_what_it_takes_is_what_its_values_take() -> None:
    alone = Rows.single(b"hello", key="größe")
    assert alone.size_bytes == 5 + 7
    assert alone.encoded == b"hello" + "größe".encode()
    assert Rows.single(b"").size_bytes == 0
    assert Rows.single(b"").keys(SEED) is None


@pytest.mark.parametrize(
    ("payload", "texts", "field"),
    [
        (b"x" * 6, {}, "payload_bytes_max"),
        (b"", {"key": "k" * 4}, "key_bytes_max"),
        (b"", {"key": "ß" * 2}, "key_bytes_max"),
        (b"", {"key": ""}, "key"),
        (b"", {"content_type": "t" * 5}, "headers_bytes_max"),
        (b"", {"subject": "s" * 3}, "subject_bytes_max"),
    ],
)
def test_the_limits_of_a_batch_hold(payload: bytes, texts: dict[str, str], field: str) -> None:
    limits = Limits(payload_bytes_max=5, key_bytes_max=3, headers_bytes_max=4, subject_bytes_max=2)
    columns = {name: [value] for name, value in texts.items()}
    for make in (
        lambda: Rows.single(payload, limits, **texts),
        lambda: Rows.of([payload], limits, **columns),
    ):
        with pytest.raises(InvalidArgument) as caught:
            make()
        assert caught.value.details["field"] == field
