"""Every error has an exit code of its own; scripts rely on them, so they are pinned."""

from __future__ import annotations

from fasti.cli.exits import ERROR_EXITS
from fasti.errors import error_codes


def test_every_error_has_an_exit_code_of_its_own() -> None:
    assert set(ERROR_EXITS) == set(error_codes())
    assert len(set(ERROR_EXITS.values())) == len(ERROR_EXITS)
    assert all(10 <= number < 64 for number in ERROR_EXITS.values())


def test_those_that_scripts_know_never_change() -> None:
    known = {"invalid_argument": 11, "not_found": 12, "overloaded": 21, "unknown": 22}
    known |= {"storage_full": 31, "corruption": 33, "newer_format": 34, "locked": 35}
    assert known.items() <= ERROR_EXITS.items()
