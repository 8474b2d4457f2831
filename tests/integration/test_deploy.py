"""The unit and the container files: what they name is there, and a broker starts with it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fasti.doors.nats_servers import find_server
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


# A cluster

NATS_UNIT = DEPLOY / "systemd" / "nats.service"
PASSWORDS = {"NATS_NAME": "nats1", "NATS_PASSWORD": "a1", "NATS_SYSTEM_PASSWORD": "b2"}


def test_systemd_takes_the_unit_of_nats(tmp_path: Path) -> None:
    text = NATS_UNIT.read_text()
    # What protects a broker protects its servers as well.
    hardening = {
        line for line in UNIT.read_text().splitlines() if line.startswith(("Protect", "Restrict"))
    }
    assert hardening <= set(text.splitlines())
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd here")
    unit = tmp_path / NATS_UNIT.name
    unit.write_text(text.replace("/opt/fasti/bin/nats-server", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_nats_takes_its_settings() -> None:
    config = DEPLOY / "nats" / "nats.conf"
    done = subprocess.run(
        [find_server(), "-t", "-c", str(config)], capture_output=True, text=True, env=PASSWORDS
    )
    assert done.returncode == 0, done.stderr
    assert "sync_interval: always" in config.read_text()


def test_the_compose_file_of_a_cluster_names_settings_and_servers() -> None:
    found = yaml.safe_load((DEPLOY / "container" / "cluster.yml").read_text())
    brokers = {name: each for name, each in found["services"].items() if name[0] == "b"}
    servers = found["services"].keys() - brokers.keys()
    assert (len(brokers), servers) == (3, {"nats1", "nats2", "nats3"})
    for name, broker in brokers.items():
        environment = dict(broker["environment"])
        assert set(environment) <= VARIABLES
        nats = environment["FASTI_NATS"].replace("${NATS_PASSWORD:?}", "a1")
        settings = load(
            environment={**environment, "FASTI_NATS": nats, "FASTI_LISTEN": "0.0.0.0:7170"}
        )
        assert (settings.cluster, settings.broker_name) == ("orders", name)
        assert settings.nats == tuple(
            f"nats://fasti:a1@{server}:4222" for server in sorted(servers)
        )
        assert str(settings.advertise) == f"{name}:7170"
    for name in servers:
        assert found["services"][name]["environment"].keys() == PASSWORDS.keys()
        assert found["services"][name]["environment"]["NATS_NAME"] == name
    assert "'.[broker,cli,cluster]'" in CONTAINER.read_text()


def test_alarms_of_a_cluster_say_what_to_do() -> None:
    document = yaml.safe_load((DEPLOY / "prometheus" / "fasti-cluster.rules.yml").read_text())
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    metrics = {name for rule in rules for name in re.findall(r"fasti_\w+", rule["expr"])}
    assert metrics
    for rule in rules:
        assert {"summary", "description"} == rule["annotations"].keys()
    table = pytest.importorskip("fasti.broker.metrics.cluster")._TABLE
    assert metrics <= set(re.findall(r"^(fasti_\w+)", table, re.MULTILINE))
