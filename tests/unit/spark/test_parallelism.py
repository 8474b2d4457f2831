"""How many cores a session has, as far as it can be told before it is made."""

import os

import pytest

from fasti.spark.parallelism import VARIABLE, cores, cores_of


@pytest.mark.parametrize(
    ("master", "conf", "expected"),
    [
        ("local", {}, 1),
        ("local[3]", {}, 3),
        ("local[3,4]", {}, 3),
        ("local[*]", {}, os.cpu_count()),
        ("local[8]", {"spark.default.parallelism": "2"}, 2),
        ("spark://host:7077", {}, None),
        ("spark://host:7077", {"spark.cores.max": "12"}, 12),
        ("yarn", {"spark.executor.cores": "4", "spark.executor.instances": "5"}, 20),
    ],
)
def test_the_cores_of_a_master(master: str, conf: dict[str, str], expected: int | None) -> None:
    assert cores_of(master, conf) == expected


def test_what_a_session_left_word_of_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "6")
    assert cores() == 6
    for odd in ("", "0", "many"):
        monkeypatch.setenv(VARIABLE, odd)
        assert cores() == os.cpu_count()
