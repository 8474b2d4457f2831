"""The manifest's data."""

from __future__ import annotations

import json

import pytest

from fasti.errors import NewerFormat
from fasti.storage.manifest import Manifest
from fasti.storage.runs import Block


def test_it_comes_back_and_names_every_object() -> None:
    blocks = [
        Block(1, 3, 1, 5, 100, (1, 0, 0), (1, 0, 2**62)),
        Block(2, 4, 1, 5, 9, (1, 0, 0), (9, 4, 1), delta=True),
    ]
    manifest = Manifest(2**63 - 1, (2**64 - 1, 1), 5, 1, 4, "00000004-000000000003.state", blocks)
    assert Manifest.decode(manifest.encode()) == manifest
    assert manifest.names == {
        "00000003-000000000001.rows",
        "00000003-000000000001.payloads",
        "00000004-000000000002.delta",
        "00000004-000000000003.state",
    }


def test_a_new_one_names_nothing() -> None:
    manifest = Manifest(1, (2, 3))
    assert Manifest.decode(manifest.encode()) == manifest
    assert manifest.names == set()


def test_a_newer_one_is_refused() -> None:
    document = json.loads(Manifest(1, (2, 3)).encode()) | {"format": 9}
    with pytest.raises(NewerFormat) as caught:
        Manifest.decode(json.dumps(document).encode())
    assert caught.value.details["found"] == 9
