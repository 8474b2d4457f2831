"""Alert rules and the dashboard: each metric and label that they name is one that a broker tells."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import fasti
from fasti import errors
from fasti.broker.launch import BrokerProcess
from fasti.errors import NotFound
from tests.integration.serve_rig import SMALL, ask
from tests.unit.cli.rig import run_here

DEPLOY = Path(__file__).parents[2] / "deploy"
# What Prometheus says of every target.
OF_PROMETHEUS = {"up": {"job"}}
# What a supervisor says of the processes of a broker: tests/shards/test_supervisor.py.
OF_SUPERVISOR = {"fasti_process_up", "fasti_process_restarts_total"}
# What a broker says of the NATS servers of its cluster: tests/cluster/test_damage_trial.py.
OF_CLUSTERS = {"fasti_cluster_damaged_copies"}
_TARGET_LABELS = {"instance", "job"}
_LABELS_USED = {
    *("instance", "topic", "group", "op", "code", "command", "direction", "limit", "caller"),
    *("thread", "process", "server"),
}
_WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}
_CODES = {
    each.code
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, errors.FastiError)
}

Samples = dict[str, list[dict[str, str]]]


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((DEPLOY / "prometheus" / "fasti.rules.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana" / "fasti.json").read_text())
    return found


def expressions() -> list[str]:
    found = [rule["expr"] for rule in rules()]
    found += [t["expr"] for panel in dashboard()["panels"] for t in panel.get("targets", ())]
    return found


def selectors(expression: str) -> list[tuple[str, str]]:
    """Names of metrics, and what stands in braces behind each."""
    # Durations, and labels by which is grouped or matched, are no metrics.
    bare = re.sub(r"\[[^\]]*\]", "", expression)
    bare = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", "", bare)
    found = re.findall(r"\b([a-zA-Z_:][\w:]*)(\{[^}]*\})?(?!\w|\s*\()", bare_strings(bare))
    return [(name, kept(braces)) for name, braces in found if name not in _WORDS]


_KEPT: list[str] = []


def bare_strings(text: str) -> str:
    """With a number in the place of each string, which may have any letters in it."""
    _KEPT.clear()

    def keep(match: re.Match[str]) -> str:
        _KEPT.append(match[1])
        return f"<{len(_KEPT) - 1}>"

    return re.sub(r'"([^"]*)"', keep, text)


def kept(braces: str) -> str:
    return re.sub(r"<(\d+)>", lambda match: f'"{_KEPT[int(match[1])]}"', braces)


def matchers(braces: str) -> list[tuple[str, str, str]]:
    return re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', braces)


def grouped_by(expression: str) -> set[str]:
    found = re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression)
    return {label.strip() for labels in found for label in labels.split(",")}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Samples]:
    """The labels of every sample of a broker on which a bit of everything has happened."""
    data = tmp_path_factory.mktemp("alarms")
    with (
        BrokerProcess(data, http="127.0.0.1:0", settings=SMALL) as broker,
        fasti.connect(broker.address) as client,
    ):
        busy(client)
        found: Samples = {}
        for family in text_string_to_metric_families(ask(broker, "/metrics").body.decode()):
            # A counter of which nothing has happened yet has no samples.
            found.setdefault(family.name + "_total" * (family.type == "counter"), [])
            for sample in family.samples:
                found.setdefault(sample.name, []).append(sample.labels)
        yield found


def busy(client: fasti.Client) -> None:
    client.create_topic("mail")
    client.create_topic("nightly", kind="cron")
    client.create_topic("events", kind="log")
    client.create_topic("profiles", kind="kv")
    client.groups("events").create("readers")
    client.producer("mail").send_batch([b"x"] * 3)
    with client.consumer("mail", name="worker") as consumer:
        next(iter(consumer)).ack(wait=True)
    with pytest.raises(NotFound):
        client.delete_topic("nobody")
    client.checkpoint()


def test_every_metric_is_told(samples: Samples) -> None:
    named = {name for expression in expressions() for name, _ in selectors(expression)}
    assert len(named) > 30
    assert sorted(named - set(samples) - set(OF_PROMETHEUS) - OF_SUPERVISOR - OF_CLUSTERS) == []


def test_every_label_is_told(samples: Samples) -> None:
    for expression in expressions():
        for name, braces in selectors(expression):
            known = {label for labels in samples.get(name, ()) for label in labels}
            known |= OF_PROMETHEUS.get(name, set()) | _TARGET_LABELS
            if not samples.get(name) and name not in OF_PROMETHEUS:
                # Nothing of it has happened here: told by the page on operating.
                known |= labels_of_page(name)
            for label, how, value in matchers(braces):
                assert label in known, (name, label, expression)
                if label == "code":
                    assert set(value.split("|")) <= _CODES, value
                elif how == "=" and label != "job":
                    assert value in {each.get(label) for each in samples[name]}, (name, value)
        labels = {label for name, _ in selectors(expression) for each in samples.get(name, ())
                  for label in each} | _TARGET_LABELS  # fmt: skip
        for name, _ in selectors(expression):
            labels |= labels_of_page(name)
        assert grouped_by(expression) <= labels, expression


def labels_of_page(metric: str) -> set[str]:
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `fasti_")]
    cell = next((each for each in cells if f"`{metric}`" in each), "")
    return set(re.findall(r"`(\w+)`", cell.partition(" by ")[2]))


def test_a_selector_is_found_in_any_expression() -> None:
    found = selectors('sum by (le) (rate(a_total{x=~"b|c"}[5m])) / on (y) max(d) > 2e9 and e == 1')
    assert found == [("a_total", '{x=~"b|c"}'), ("d", ""), ("e", "")]
    assert matchers('{x=~"b|c",y="z"}') == [("x", "=~", "b|c"), ("y", "=", "z")]


def test_every_rule_says_how_bad_it_is_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert re.fullmatch(r"\d+[mh]", rule["for"]), rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["expr"].count("(") == rule["expr"].count(")")
        used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        assert used <= _LABELS_USED


def test_commands_that_rules_name_are_there() -> None:
    told = str([rule["annotations"] for rule in rules()])
    commands = set(re.findall(r"`fasti ([a-z ]+)`", told))
    assert {"consumers", "dead list", "groups reset", "schedules list"} <= commands
    for command in commands:
        assert run_here(*command.split(), "--help").code == 0, command


def test_the_dashboard_is_one() -> None:
    found = dashboard()
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len(set(ids))
    assert {each["name"] for each in found["templating"]["list"]} == {
        *("datasource", "instance", "topic"),
    }
    for panel in found["panels"]:
        assert panel["title"]
        assert panel["type"] == "row" or panel["targets"]
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
