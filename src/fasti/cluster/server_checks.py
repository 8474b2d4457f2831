"""Which NATS servers a cluster may be kept by. Pure.

A server that syncs now and then acknowledges what a power cut of two machines takes away, and an old one has
faults that lose messages. Both are refused, with the line that the operator has to write.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from fasti.cluster.server_reports import ServerReport

# Of those before, none was tried; 2.14 syncs twice for each write, 2.15 once.
VERSION_MIN = (2, 14)
_NUMBERS = re.compile(r"(\d+)\.(\d+)")


class ServerProblem(NamedTuple):
    """What is wrong with a server, and what to do about it."""

    server: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"NATS server {self.server} {self.problem}: {self.remedy}"


def problems_of(reports: Iterable[ServerReport]) -> list[ServerProblem]:
    """By server. One without JetStream keeps nothing, so it may be there; but not if all are so."""
    found: list[ServerProblem] = []
    told = list(reports)
    keepers = [report for report in told if report.sync_always is not None]
    for report in keepers or told:
        if report.sync_always is None:
            remedy = (
                "write `jetstream { store_dir: ..., sync_interval: always }` into its settings; if it is there, "
                "its disk was full: make room and start it again"
            )
            found.append(ServerProblem(report.name, "has no JetStream", remedy))
        elif not report.sync_always:
            found.append(
                ServerProblem(
                    report.name,
                    "acknowledges what it has not synced",
                    "write `sync_interval: always` into the `jetstream` part of its settings",
                )
            )
        numbers = _NUMBERS.match(report.version)
        if numbers is None or tuple(map(int, numbers.groups())) < VERSION_MIN:
            least = ".".join(map(str, VERSION_MIN))
            problem = f"has version {report.version}"
            found.append(ServerProblem(report.name, problem, f"{least} or newer is needed"))
    return found
