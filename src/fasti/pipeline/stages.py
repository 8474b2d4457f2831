"""The pipeline that Fasti brings: counts, bronze, silver, gold, audit, in this order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fasti.client.address import known_address
from fasti.pipeline import bronze, silver_stage
from fasti.pipeline.audit_stage import Audit, BrokerCounts
from fasti.pipeline.gold import stage as gold_stage
from fasti.pipeline.lake import Lake
from fasti.pipeline.runner import Stage, StageRun, Workflow

BRONZE = Stage("bronze", bronze.update)
SILVER = Stage("silver", silver_stage.update)
GOLD = Stage("gold", gold_stage.update)


@dataclass(frozen=True)
class ReportPage:
    """The page that is written after each round; with `refresh_s` it loads itself again."""

    path: Path | None = None
    refresh_s: int | None = None

    def update(self, run: StageRun) -> int:
        """Writes it: one page."""
        from fasti.pipeline import report

        report.write(run.lake, self.path, self.refresh_s)
        return 1


def pipeline(
    lake: Lake,
    address: str | None = None,
    token: str | None = None,
    *,
    payload: bool = False,
    audit: bool = True,
    full: bool = False,
    report: ReportPage | None = None,
    on_gap: Literal["fail", "skip"] = "fail",
) -> Workflow:
    """All stages, for `fasti.pipeline.runner.run(pipeline(lake, address), spark)`.

    The broker is at `address`, by default FASTI_ADDRESS or port 7170 of this machine.
    `payload` keeps payloads in bronze, `full` lets the audit look at everything again, not only at
    what is new, and `on_gap="skip"` goes on where the feed begins if it no longer reaches back to the
    lake.
    """
    counts = BrokerCounts()
    stages = [Stage("counts", counts.update), BRONZE, SILVER, GOLD]
    if audit:
        stages.append(Stage("audit", Audit(counts).update))
    if report is not None:
        stages.append(Stage("report", report.update))
    options = {"payload": payload, "full": full, "as_of_us": lambda: counts.at_us}
    return Workflow(lake, stages, address or known_address(), token, on_gap, options)


def offline(lake: Lake, *, full: bool = True) -> Workflow:
    """The audit alone, of what the tables have; no broker is asked."""
    return Workflow(lake, [Stage("audit", Audit().update)], options={"full": full})
