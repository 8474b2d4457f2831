"""The unit and the container files: what they name is there, and a broker starts with it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fasti.settings.declared import SETTINGS
from fasti.settings.load import load

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "systemd" / "fasti.service"
# Of one process of several.
TEMPLATE = DEPLOY / "systemd" / "fasti@.service"
CONTAINER = DEPLOY / "container" / "Containerfile"
VARIABLES = {setting.variable for setting in SETTINGS}


def unit_environment() -> dict[str, str]:
    lines = re.findall(r"^Environment=(.*)$", UNIT.read_text(), re.MULTILINE)
    return dict(pair.split("=", 1) for line in lines for pair in line.split())  # type: ignore[misc]


def container_environment() -> dict[str, str]:
    [given] = re.findall(r"^ENV (.*?[^\\])$", CONTAINER.read_text(), re.MULTILINE | re.DOTALL)
    return dict(pair.split("=", 1) for pair in given.replace("\\\n", " ").split())


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "container" / "compose.yml").read_text())
    service: dict[str, Any] = found["services"]["fasti"]
    return service


@pytest.mark.parametrize("given", [unit_environment, container_environment])
def test_variables_are_settings_with_values_that_are_good(given: Any, tmp_path: Path) -> None:
    environment = given()
    ours = {name: value for name, value in environment.items() if name.startswith("FASTI_")}
    assert set(ours) <= VARIABLES
    files = {"FASTI_TLS_CERT", "FASTI_TLS_KEY", "FASTI_CREDENTIALS"}
    for name in files:
        (tmp_path / name).touch(mode=0o600)
        ours[name] = str(tmp_path / name)
    settings = load(environment=ours)
    assert settings.shard.memory_bytes == 4 << 30


def test_compose_gives_what_the_image_lacks() -> None:
    service = compose()
    assert set(service["environment"]) <= VARIABLES
    for name in service["secrets"]:
        assert f"/run/secrets/{name}" in service["environment"].values()
    assert (DEPLOY / "container" / service["build"]["context"] / "pyproject.toml").exists()
    assert service["mem_limit"] == service["memswap_limit"] == "8g"


def test_copied_files_are_there() -> None:
    root = DEPLOY.parent
    for line in re.findall(r"^COPY (?!--from)(.*)$", CONTAINER.read_text(), re.MULTILINE):
        assert all((root / name).exists() for name in line.split()[:-1]), line


@pytest.mark.parametrize("path", [UNIT, TEMPLATE], ids=["fasti", "fasti@"])
def test_systemd_takes_the_unit(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    for line in ("MemoryMax=8G", "OOMPolicy=stop", "StateDirectoryMode=0700", "Restart=on-failure"):
        assert line in text.splitlines()
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd here")
    unit = tmp_path / path.name.replace("@", "@7170")
    unit.write_text(text.replace("/opt/fasti/bin/fasti", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_of_one_process_differs_in_little() -> None:
    """What one of them learns about safety, the other should have too."""
    one, template = (set(path.read_text().splitlines()) for path in (UNIT, TEMPLATE))
    ours = {line for line in template - one if line and not line.startswith("#")}
    assert {line.partition("=")[0] for line in ours} == {
        *("Description", "ExecStart", "User", "Group"),
    }
    (start,) = (line for line in ours if line.startswith("ExecStart"))
    assert start.endswith("--listen 127.0.0.1:%i --http off")
