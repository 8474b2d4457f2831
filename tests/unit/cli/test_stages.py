"""How rows of the lake's tables are shown."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from fasti.cli.stages import print_rows


def shown(
    columns: dict[str, list[object]],
    width: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> list[list[str]]:
    monkeypatch.setenv("COLUMNS", str(width))
    print_rows(pa.table(columns), as_json=False)
    return [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_few_columns_stand_side_by_side(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = datetime(2026, 3, 1, 12, tzinfo=UTC)
    lines = shown({"topic": ["a"], "start": [start], "over": [True]}, 80, capsys, monkeypatch)
    assert lines[0] == ["topic", "start", "over"]
    assert lines[-1] == ["a", "2026-03-01", "12:00:00", "true"]


def test_of_many_columns_each_row_stands_by_itself_with_what_it_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns: dict[str, list[object]] = {f"c{number}": [number, None] for number in range(40)}
    lines = shown(columns, 80, capsys, monkeypatch)
    assert lines[0] == ["row", "1"]
    assert ["c39", "39"] in lines
    assert lines[-2] == ["row", "2"]
    # A terminal that is wide enough has them all in one line.
    assert len(shown(columns, 400, capsys, monkeypatch)[0]) == 40
