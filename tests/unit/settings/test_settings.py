"""Settings: where they come from, how they are written, and what is said of wrong ones."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fasti.config import Durability, ShardSettings
from fasti.errors import InvalidArgument
from fasti.model import Limits
from fasti.settings.declared import LIMITS, SETTINGS, SHARD
from fasti.settings.load import ServeSettings, load
from fasti.settings.page import as_toml
from fasti.settings.values import Address, FilePath, Length, Listen, Size, Switch, WholeNumber


def faults(**given: Any) -> list[str]:
    with pytest.raises(InvalidArgument) as refused:
        load(**{"environment": {}, **given})
    texts: list[str] = refused.value.details["faults"]
    assert all(text in refused.value.message for text in texts)
    return texts


def file(directory: Path, text: str) -> Path:
    path = directory / "fasti.toml"
    path.write_text(text)
    return path


def test_nothing_given_gives_the_defaults_of_the_library() -> None:
    settings = load(environment={})
    assert settings.shard == ShardSettings()
    assert settings.data == Path("fasti-data")
    assert settings.listen == Address("127.0.0.1", 7170)
    assert settings.http == Address("127.0.0.1", 7180)


def test_every_field_of_the_library_is_a_setting() -> None:
    shard = {field.name for field in fields(ShardSettings)} - {"limits"}
    assert {setting.field for setting in SHARD} == shard
    assert {setting.field for setting in LIMITS} == {field.name for field in fields(Limits)}


def test_keys_follow_from_the_fields_of_the_library() -> None:
    keys = {setting.field: setting.key for setting in SETTINGS}
    assert keys["memory_bytes"] == "memory"
    assert keys["lease_us_min"] == "limits.lease_min"
    assert keys["checkpoint_bytes_per_s"] == "checkpoint_rate"
    assert keys["first_call_us"] == "guard.first_call_within"
    kinds = {setting.key: setting.kind for setting in SETTINGS}
    assert kinds["sync_interval"] == Length("ms")
    assert kinds["segment_size"] == Size(least=1 << 16)
    assert kinds["limits.topics_max"] == WholeNumber()


@pytest.mark.parametrize("key", ["scrub_interval", "feed_age"])
def test_what_the_library_lets_be_zero_can_be_set_to_zero(key: str) -> None:
    settings = load({key: "0s"}, {})
    assert getattr(settings.shard, f"{key}_us") == 0


def test_names_follow_from_the_key() -> None:
    (setting,) = [setting for setting in SETTINGS if setting.key == "limits.payload_max"]
    assert setting.flag == "--limits-payload-max"
    assert setting.variable == "FASTI_LIMITS_PAYLOAD_MAX"
    assert setting.section == "limits"
    assert len({setting.flag for setting in SETTINGS}) == len(SETTINGS)


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    path = file(tmp_path, 'memory = "1MiB"\nlog_level = "error"\ndurability = "interval"\n')
    environment = {"FASTI_MEMORY": "2MiB", "FASTI_LOG_LEVEL": "debug"}
    settings = load({"memory": "3MiB", "data": None}, environment, path)
    assert settings.shard.memory_bytes == 3 << 20
    assert settings.log_level == "debug"
    assert settings.shard.durability is Durability.INTERVAL
    assert settings.sources["memory"] == "flag --memory"
    assert settings.sources["log_level"] == "variable FASTI_LOG_LEVEL"
    assert settings.sources["durability"] == f"file {path}, durability"
    assert settings.sources["data"] == "default"


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    path = file(tmp_path, "[limits]\npayload_max = 100\n")
    settings = load(environment={"FASTI_CONFIG": str(path)})
    assert settings.shard.limits.payload_bytes_max == 100


def test_an_empty_variable_is_none() -> None:
    assert load(environment={"FASTI_MEMORY": ""}).shard == ShardSettings()


def test_every_fault_is_told_at_once_with_its_source(tmp_path: Path) -> None:
    path = file(tmp_path, 'memroy = "1GiB"\nhttp = "nowhere"\n[limits]\nkey_max = "5 parsecs"\n')
    found = faults(
        flags={"listen": "127.0.0.1", "log_level": "loud"},
        environment={"FASTI_SYNC_INTERVAL": "100"},
        config=path,
    )
    assert len(found) == 6
    assert any(
        f"file {path}" in text and "'memroy'" in text and "'memory'" in text for text in found
    )
    assert any(f"file {path}, http" in text for text in found)
    assert any("limits.key_max" in text and "5 parsecs" in text for text in found)
    assert any("flag --listen" in text for text in found)
    assert any("flag --log-level" in text and "loud" in text for text in found)
    assert any("FASTI_SYNC_INTERVAL" in text and "units" in text for text in found)


def test_a_wrong_value_counts_even_where_another_overrides_it(tmp_path: Path) -> None:
    path = file(tmp_path, 'memory = "much"\n')
    (found,) = faults(flags={"memory": "1GiB"}, config=path)
    assert "much" in found


@pytest.mark.parametrize("text", ["memory = ", "= 1", "\x00"])
def test_a_file_that_is_no_toml(tmp_path: Path, text: str) -> None:
    (found,) = faults(config=file(tmp_path, text))
    assert "not TOML" in found


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    (found,) = faults(config=tmp_path / "none.toml")
    assert "No such file" in found


@pytest.mark.parametrize("key", ["listen", "http"])
@pytest.mark.parametrize("address", ["0.0.0.0:7170", "[::]:7170", "10.1.2.3:7170", "broker:7170"])
def test_beyond_loopback_it_asks_for_tls_and_credentials(key: str, address: str) -> None:
    (found,) = faults(flags={key: address})
    assert f"flag --{key}: {address}" in found
    assert "insecure" in found
    assert load({key: address, "insecure": True}, {}).insecure


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.1.2.3:1", "[::1]:1", "localhost:1"])
def test_loopback_needs_neither(address: str) -> None:
    assert load({"listen": address, "http": "off"}, {}).http is None


def test_with_tls_and_credentials_it_may_listen_anywhere(tmp_path: Path) -> None:
    names = ("tls_cert", "tls_key", "credentials")
    for name in names:
        (tmp_path / name).write_text("")
    given: dict[str, Any] = {name: str(tmp_path / name) for name in names}
    assert load({**given, "listen": "0.0.0.0:7170"}, {}).tls_cert == tmp_path / "tls_cert"
    for left_out in names:
        some = {name: value for name, value in given.items() if name != left_out}
        assert faults(flags={**some, "listen": "0.0.0.0:7170"})


def test_tls_needs_both_files_and_they_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "cert").write_text("")
    (found,) = faults(flags={"tls_cert": str(tmp_path / "cert")})
    assert "tls_key" in found
    found_too = faults(flags={"tls_cert": str(tmp_path / "cert"), "tls_key": str(tmp_path / "no")})
    assert len(found_too) == 1
    assert "No such file" in found_too[0]


def test_settings_that_contradict_each_other(tmp_path: Path) -> None:
    path = file(tmp_path, 'inbox_rows_max = 5\n[limits]\nlease_min = "2h"\nlease_max = "1h"\n')
    found = faults(config=path)
    assert len(found) == 2
    assert "inbox_rows_max" in found[0]
    assert "lease_min" in found[1]


@pytest.mark.parametrize(
    ("given", "value"),
    [("64MiB", 64 << 20), ("1.5 kib", 1536), ("10kb", 10_000), ("7", 7), (7, 7), ("7B", 7)],
)
def test_sizes(given: Any, value: int) -> None:
    assert Size().read(given) == value


@pytest.mark.parametrize(
    ("given", "value"), [("100ms", 100), ("1s", 1000), ("1.5s", 1500), ("2h", 7_200_000)]
)
def test_lengths(given: str, value: int) -> None:
    assert Length("ms").read(given) == value


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (Size(), "0"),
        (Size(), "-1"),
        (Size(), "1.5"),
        (Size(), True),
        (Size(), "MiB"),
        (Size(), "1 MiB x"),
        (Length("ms"), "100"),
        (Length("ms"), "100us"),
        (Length("us"), "1 fortnight"),
        (WholeNumber(), "many"),
        (WholeNumber(), "-5"),
        (WholeNumber(), 1.5),
        (WholeNumber(most=10), "11"),
        (Switch(), "perhaps"),
        (FilePath(), ""),
        (FilePath(), 5),
        (Listen(), "off"),
        (Listen(), "7170"),
        (Listen(), ":7170"),
        (Listen(), "host:70000"),
        (Listen(), "::1:7170"),
        (Listen(may_be_off=True), True),
    ],
)
def test_values_that_cannot_be(kind: Any, given: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        kind.read(given)


def test_what_is_shown_reads_as_the_same_settings(tmp_path: Path) -> None:
    flags = {
        "data": 'a "quoted" ünïcode\\path',
        "http": "off",
        "listen": "[::1]:7",
        "memory": "123456789",
        "sync_interval": "90s",
        "log_format": "json",
    }
    before = load(flags, {})
    path = file(tmp_path, as_toml(before))
    after = load(environment={}, config=path)
    assert values(after) == values(before)
    assert set(tomllib.loads(path.read_text())) >= {"data", "memory", "limits"}


def values(settings: ServeSettings) -> dict[str, Any]:
    return settings.values
