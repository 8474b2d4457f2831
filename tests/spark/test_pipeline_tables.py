"""Tables: what is committed counts, once, whole; what isn't leaves nothing behind."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from fasti.errors import AlreadyExists, DataDirLocked, FastiError, InvalidArgument, NotFound
from fasti.pipeline.files import folder_of, partition_of
from fasti.pipeline.inventory import first_rows, tables
from fasti.pipeline.lake import Lake
from fasti.pipeline.tables import Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "t", ["day"])


def rows(*numbers: int, day: str = "monday") -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64()), "day": [day] * len(numbers)})


def numbers(table: Table) -> list[int]:
    return sorted(table.arrow().column("n").to_pylist())


def on_disk(table: Table) -> set[str]:
    return {
        path.relative_to(table.path).as_posix()
        for path in table.path.rglob("*.parquet")
        if "_delta_log" not in path.parts
    }


def test_a_table_comes_to_be_with_its_first_rows(table: Table) -> None:
    assert not table.exists()
    assert table.version() is None
    assert table.position("app") is None
    with pytest.raises(NotFound):
        table.schema()
    assert table.append(rows(1, 2))
    assert table.exists()
    assert table.schema().names == ["n", "day"]
    assert numbers(table) == [1, 2]


def test_a_transaction_counts_once(table: Table) -> None:
    assert table.append(rows(1), ("app", 5))
    assert not table.append(rows(1), ("app", 5))
    assert not table.append(rows(2), ("app", 4))
    assert table.append(rows(3), ("app", 6))
    assert table.append(rows(4), ("other", 1))
    assert numbers(table) == [1, 3, 4]
    assert (table.position("app"), table.position("other")) == (6, 1)
    # What was refused has left no file.
    assert on_disk(table) == {each.path for each in table.files()}


def test_files_come_and_go_in_one_commit(table: Table) -> None:
    table.append(rows(1, day="monday"))
    table.append(rows(2, day="tuesday"))
    [monday] = [each for each in table.files() if each.partition == {"day": "monday"}]
    version = table.version()
    with table.staging() as staged:
        table.write_staged(rows(10, 11, day="sunday"), staged)
        assert table.replace(table.adopt(staged), [monday], ("app", 1))
    assert table.version() == (version or 0) + 1
    assert numbers(table) == [2, 10, 11]
    assert table.overwrite(rows(7))
    assert numbers(table) == [7]


def test_what_is_known_of_files(table: Table) -> None:
    table.append(rows(5, 9))
    [file] = table.files()
    assert (file.rows, file.partition) == (2, {"day": "monday"})
    assert (file.low["n"], file.high["n"]) == (5, 9)
    assert file.size_bytes == (table.path / file.path).stat().st_size
    assert file.may_have("n", above=8, up_to=100)
    assert not file.may_have("n", above=9)
    assert not file.may_have("n", up_to=4)
    assert file.may_have("unknown", above=1)


@pytest.mark.parametrize("value", ["plain", "a/b c%=*", "ü~", "x'y\"z:#[]{}?\\"])
def test_values_of_any_kind_in_paths(tmp_path: Path, value: str) -> None:
    table = Table(tmp_path / "t", ["day"])
    table.append(rows(1, day=value))
    table.append(rows(2, day="other"))
    assert [each["day"] for each in table.arrow().sort_by("n").to_pylist()] == [value, "other"]
    assert partition_of(folder_of({"day": value}) + "x.parquet", ["day"]) == {"day": value}
    [old] = [each for each in table.files() if each.partition["day"] == value]
    table.replace([], [old])
    assert numbers(table) == [2]


def test_spark_reads_and_writes_it(table: Table, spark: SparkSession) -> None:
    written = spark.createDataFrame(
        [(1, "a/b"), (2, "a/b"), (3, "007"), (4, None)], "n long, day string"
    )
    assert table.append(written.coalesce(1), ("app", 1))
    table.append(rows(5, day="a/b"))
    found = {(row.n, row.day) for row in table.read(spark).collect()}
    assert found == {(1, "a/b"), (2, "a/b"), (3, "007"), (4, None), (5, "a/b")}
    few = [each for each in table.files() if each.partition["day"] == "a/b"]
    assert table.read(spark, few).count() == 3
    assert table.read(spark, []).count() == 0

    before = len(table.files())
    gone = table.compact(spark)
    assert gone == 2
    assert len(table.files()) == before - 1
    assert {(row.n, row.day) for row in table.read(spark).collect()} == found
    assert len(on_disk(table)) == before + 1
    assert table.vacuum(keep_hours=0) == 2
    assert on_disk(table) == {each.path for each in table.files()}


def test_small_files_are_joined_without_spark(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    table = lake.bronze
    for number in range(40):
        data = {"n": [number], "day": ["d" if number % 2 else "e"], "part": ["p"]}
        table.append(pa.table(data), ("app", number))
    lake.tidy()
    assert len(table.files()) == 40
    table.append(pa.table({"n": range(40, 60), "day": ["d"] * 20, "part": ["p"] * 20}))
    for number in range(60, 72):
        table.append(pa.table({"n": [number], "day": ["d"], "part": ["p"]}))
    version = table.version()
    lake.tidy()
    assert len(table.files()) == 21
    assert table.version() == (version or 0) + 1
    assert numbers(table) == list(range(72))
    assert table.position("app") == 39
    assert len(on_disk(table)) == 54
    lake.tidy(keep_hours=0)
    assert on_disk(table) == {each.path for each in table.files()}


def test_a_user_s_table_is_joined_and_shown_with_its_partition_columns(tmp_path: Path) -> None:
    """The command line knows of its columns only what lies on disk."""
    for number in range(3):
        Lake(tmp_path).table("mine", "day").append(rows(number))
    lake = Lake(tmp_path)
    assert first_rows(lake, "tables/mine", 5).column("day").to_pylist() == ["monday"] * 3
    table = tables(lake)["tables/mine"]
    assert table.compact() == 3
    assert (len(table.files()), numbers(table)) == (1, [0, 1, 2])
    lake.table("none", "day").replace([], [], schema=rows(1).schema)
    assert first_rows(lake, "tables/none", 5).num_rows == 0


def test_moments_are_what_other_readers_expect(tmp_path: Path, spark: SparkSession) -> None:
    table = Table(tmp_path / "t")
    table.append(spark.sql("select timestamp'2026-11-16 10:00:00.123456' as at, map('a','b') as m"))
    [row] = deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()
    assert row["at"].isoformat() == "2026-11-16T10:00:00.123456+00:00"
    assert table.files()[0].low["at"] == row["at"]
    assert table.arrow().to_pylist()[0]["m"] == [("a", "b")]


def test_delta_tables_are_delta_tables(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", ["day"])
    table.append(rows(1, 2), ("app", 3))
    table.append(rows(3, day="tuesday"))
    theirs = deltalake.DeltaTable(str(tmp_path / "t"))
    assert sorted(theirs.to_pyarrow_table().column("n").to_pylist()) == [1, 2, 3]
    assert theirs.metadata().partition_columns == ["day"]
    assert theirs.transaction_version("app") == 3
    tuesday = theirs.to_pyarrow_dataset().filter(pa.compute.field("day") == "tuesday")
    assert tuesday.to_table().column("n").to_pylist() == [3]


class Killed(BaseException):
    """As if the process was gone."""


def test_what_killed_writers_left_is_cleaned(tmp_path: Path) -> None:
    table = Table(tmp_path / "lake" / "gold" / "t", ["day"])
    table.append(rows(1))

    with suppress(Killed), table.staging() as staged:
        table.write_staged(rows(2), staged)
        raise Killed
    with suppress(Killed), table.staging() as staged:
        table.write_staged(rows(3), staged)
        table.adopt(staged)
        raise Killed
    with suppress(Killed), table.staging() as staged:
        table.write_staged(rows(4), staged)
        table.replace(table.adopt(staged), [])
        raise Killed
    assert len(on_disk(table)) == 4
    assert Lake(tmp_path / "lake").clean() == 2
    assert on_disk(table) == {each.path for each in table.files()}
    assert numbers(table) == [1, 4]
    assert Lake(tmp_path / "lake").clean() == 0


def test_two_writers_at_once_are_not_both_right(tmp_path: Path) -> None:
    one, other = (Table(tmp_path / "t") for _ in range(2))
    data = pa.table({"n": pa.array([1], pa.int64())})
    one.append(data, ("app", 1))
    with one.staging() as staged:
        one.write_staged(data, staged)
        files = one.adopt(staged)
    # The other looked before we committed, and commits after.
    opened = other._delta()
    other._delta = lambda: opened  # type: ignore[method-assign]
    one.replace(files, [], ("app", 2))
    with pytest.raises(AlreadyExists):
        other.replace(files, [], ("app", 2))
    assert one.position("app") == 2
    assert one.rows() == 2


def test_other_columns_are_refused(table: Table) -> None:
    table.append(rows(1))
    with pytest.raises(InvalidArgument, match=r"other columns.*'m'"):
        table.append(pa.table({"m": [1], "day": ["monday"]}))
    with pytest.raises(InvalidArgument, match="name"):
        Lake(table.path).gold("../etc")
    assert numbers(table) == [1]


def test_files_that_only_executors_see(table: Table) -> None:
    with (
        table.staging() as staged,
        pytest.raises(NotFound, match="the driver and all executors share"),
    ):
        table.adopt(staged, [staged / "day=monday" / "elsewhere.parquet"])
    assert not table.exists()


def test_a_lake_has_one_writer(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    program = (
        "import sys; from fasti.pipeline.lake import Lake\n"
        "with Lake(sys.argv[1]).lock():\n"
        "    print('locked', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ},
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(DataDirLocked, match=f"process {other.pid}") as caught, lake.lock():
            pass
        assert isinstance(caught.value, FastiError)
        other.kill()
    with lake.lock():
        pass
