"""The pipeline that Fasti brings: counts, bronze, silver, gold, audit, in this order."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fasti.client.address import known_address
from fasti.pipeline.audit_stage import Audited, Counted
from fasti.pipeline.bronze import bronze
from fasti.pipeline.gold.stage import update
from fasti.pipeline.lake import Lake
from fasti.pipeline.runner import Pipeline, Run, Stage
from fasti.pipeline.silver_stage import silver_messages

# Of gold, in the order in which people ask for them.
TABLES = ("lateness", "throughput", "backlog", "consumers", "retries", "attempts", "audit")


class Reported:
    """Writes the report after each round; `refresh_s` lets a page on a wall load itself again."""

    __name__ = "report"

    def __init__(self, path: Path | None = None, refresh_s: int | None = None) -> None:
        self._path, self._refresh_s = path, refresh_s

    def __call__(self, run: Run) -> int:
        """One page."""
        from fasti.pipeline import report

        report.write(run.lake, self._path, self._refresh_s)
        return 1


def pipeline(
    lake: Lake,
    address: str | None = None,
    token: str | None = None,
    *,
    payload: bool = False,
    audit: bool = True,
    full: bool = False,
    report: Reported | None = None,
    on_gap: Literal["fail", "skip"] = "fail",
) -> Pipeline:
    """All stages, for `fasti.pipeline.runner.run(pipeline(lake, address), spark)`.

    The broker is at `address`, by default FASTI_ADDRESS or port 7170 of this machine.
    `payload` keeps payloads in bronze, `full` lets the audit look at everything again, not only at
    what is new, and `on_gap="skip"` goes on where the feed begins if it no longer reaches back to the
    lake.
    """
    counted = Counted()
    stages: list[Stage] = [counted, bronze, silver_messages, update]
    if audit:
        stages.append(Audited(counted))
    if report is not None:
        stages.append(report)
    options = {"payload": payload, "full": full, "as_of_us": lambda: counted.at_us}
    return Pipeline(lake, stages, address or known_address(), token, on_gap, options)


def offline(lake: Lake, *, full: bool = True) -> Pipeline:
    """The audit alone, of what the tables have; no broker is asked."""
    return Pipeline(lake, [Audited()], options={"full": full})
