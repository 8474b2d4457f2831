"""The pipeline that Fasti brings: counts, bronze, silver, gold, audit, in this order."""

from __future__ import annotations

from typing import Literal

from fasti.pipeline.audit_stage import Audited, Counted
from fasti.pipeline.bronze import bronze
from fasti.pipeline.gold.stage import update
from fasti.pipeline.lake import Lake
from fasti.pipeline.runner import Pipeline, Stage
from fasti.pipeline.silver_stage import silver_messages

# Of gold, in the order in which people ask for them.
TABLES = ("lateness", "throughput", "backlog", "consumers", "retries", "attempts", "audit")


def pipeline(
    lake: Lake,
    address: str = "127.0.0.1:7170",
    token: str | None = None,
    *,
    payload: bool = False,
    audit: bool = True,
    full: bool = False,
    on_gap: Literal["fail", "skip"] = "fail",
) -> Pipeline:
    """All stages. `full` lets the audit look at everything again, not only at what is new."""
    counted = Counted()
    stages: list[Stage] = [counted, bronze, silver_messages, update]
    if audit:
        stages.append(Audited(counted))
    options = {"payload": payload, "full": full, "as_of_us": lambda: counted.at_us}
    return Pipeline(lake, stages, address, token, on_gap, options)


def offline(lake: Lake, *, full: bool = True) -> Pipeline:
    """The audit alone, of what the tables have; no broker is asked."""
    return Pipeline(lake, [Audited()], options={"full": full})


__all__ = ["TABLES", "offline", "pipeline"]
