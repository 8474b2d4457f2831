"""`fasti serve` without serving, and `fasti token`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fasti.cli.exits import ERROR_EXITS
from fasti.cli.main import app
from fasti.doors.credentials import Credentials
from fasti.settings.declared import SETTINGS

runner = CliRunner()


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.delenv("FASTI_CONFIG", raising=False)


def test_every_setting_is_a_flag() -> None:
    given: list[str] = []
    for setting in SETTINGS:
        if setting.default is not None:
            shown = setting.kind.show(setting.default)
            given += [setting.flag] if setting.kind.metavar == "" else [setting.flag, shown]
    done = runner.invoke(app, ["serve", "--print-config", *given])
    assert done.exit_code == 0, done.output
    assert done.output.count("# flag --") == len([s for s in SETTINGS if s.default is not None])


def test_the_effective_settings_are_printed_as_toml(tmp_path: Path) -> None:
    config = tmp_path / "fasti.toml"
    config.write_text('log_level = "debug"\n[limits]\nkey_max = 99\n')
    arguments = ["serve", "--config", str(config), "--memory", "1GiB", "--print-config"]
    done = runner.invoke(app, arguments, env={"FASTI_HTTP": "off"})
    assert done.exit_code == 0
    made = tomllib.loads(done.output)
    assert made["log_level"] == "debug"
    assert made["memory"] == "1GiB"
    assert made["http"] == "off"
    assert made["limits"]["key_max"] == "99"


def test_checking_settings_serves_nothing(tmp_path: Path) -> None:
    done = runner.invoke(app, ["serve", "--check", "--data", str(tmp_path / "d")])
    assert done.exit_code == 0
    assert not (tmp_path / "d").exists()


def test_wrong_settings_are_told_together() -> None:
    arguments = ["serve", "--check", "--listen", "0.0.0.0:1", "--log-level", "loud"]
    done = runner.invoke(app, arguments, env={"FASTI_MEMORY": "lots"})
    assert done.exit_code == ERROR_EXITS["invalid_argument"]
    assert "3 settings are wrong" in done.stderr
    for part in ("flag --listen", "flag --log-level", "variable FASTI_MEMORY"):
        assert part in done.stderr


def test_tokens(tmp_path: Path) -> None:
    file = ["--file", str(tmp_path / "tokens.toml")]
    made = runner.invoke(app, ["token", "create", "billing", *file])
    assert made.exit_code == 0
    token = made.stdout.strip()
    assert Credentials(tmp_path / "tokens.toml").check(token) == "billing"
    other = json.loads(runner.invoke(app, ["token", "create", "mail", "--json", *file]).stdout)
    assert other["name"] == "mail"
    assert runner.invoke(app, ["token", "list", *file]).stdout.split() == ["billing", "mail"]
    again = runner.invoke(app, ["token", "create", "mail", *file])
    assert again.exit_code == ERROR_EXITS["already_exists"]
    assert runner.invoke(app, ["token", "revoke", "mail", *file]).exit_code == 0
    listed = runner.invoke(app, ["token", "list", "--json", *file]).stdout
    assert json.loads(listed) == ["billing"]
    gone = runner.invoke(app, ["token", "revoke", "mail", *file])
    assert gone.exit_code == ERROR_EXITS["not_found"]
