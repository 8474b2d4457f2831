"""The machine's faults, and the table of what was tried.

Every test here says with `@pytest.mark.fault(area, fault, expected)` what it breaks and what must come of it, and with
the fixture `tried` how often it did so and what was seen. `make faults` runs them all and prints the table of
docs/reliability.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.shim import MachineFaults, built


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that processes on a faulty machine are started with."""
    return built(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def machine(shim: Path, tmp_path: Path) -> Iterator[MachineFaults]:
    """A machine for processes started with its `environment`; its faults begin when the test says."""
    faults = MachineFaults(shim, tmp_path / "machine.control")
    yield faults
    faults.heal()


@dataclass
class Tried:
    """What one test tried."""

    times: int = 1
    seen: str = "as expected"


@pytest.fixture
def tried(record_property: Callable[[str, object], None]) -> Iterator[Tried]:
    """For the table: how often the fault was injected, and what was seen in a few words."""
    told = Tried()
    yield told
    record_property("times", told.times)
    record_property("seen", told.seen)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("fault"):
        item.user_properties.append(("fault", list(mark.args)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault-table", action="store_true", help="print what was tried as a table")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not terminalreporter.config.getoption("--fault-table", default=False):
        return
    terminalreporter.section("faults")
    for line in table(terminalreporter.stats):
        terminalreporter.write_line(line)


def table(stats: dict[str, list[pytest.TestReport]]) -> list[str]:
    """The table of docs/reliability.md, from the reports of a run. Repeated cases are added up."""
    lines: dict[tuple[str, ...], list[tuple[int, str]]] = {}
    wrong = {
        report.nodeid: word for word in ("failed", "skipped") for report in stats.get(word, [])
    }
    # What a test recorded is complete when it was torn down; such reports have no word.
    for report in stats.get("", []):
        told = dict(report.user_properties)
        if report.when != "teardown" or "fault" not in told:
            continue
        seen = wrong.get(report.nodeid, str(told.get("seen", "as expected")))
        case = tuple(str(word) for word in told["fault"])  # type: ignore[attr-defined]
        lines.setdefault(case, []).append((int(str(told.get("times", 1))), seen))
    made = ["| area | fault | times | expected | seen |", "| --- | --- | --- | --- | --- |"]
    for (area, fault, expected), cases in sorted(lines.items()):
        times = sum(count for count, _ in cases)
        seen = "; ".join(dict.fromkeys(word for _, word in cases))
        made.append(f"| {area} | {fault} | {times} | {expected} | {seen} |")
    return made
