"""A driver of the pipeline for tests to kill: it kills itself with SIGKILL at the place it is told.

python killed_pipeline.py '{"lake": DIR, "address": ..., "table": "bronze", "place": "before"}'
"""

import json
import os
import signal
import sys
from typing import Any

import fasti.spark
from fasti.pipeline.lake import Lake
from fasti.pipeline.runner import Workflow, run
from fasti.pipeline.stages import BRONZE, SILVER
from fasti.pipeline.tables import Table

QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
# Where a table's writer can be killed.
PLACES = ("before", "written", "adopted", "committed")


def break_at(table: str, place: str, end: Any) -> None:
    """From now on a writer of that table comes to its end at that place."""
    staging, adopt, replace = Table.staging, Table.adopt, Table.replace

    def ends(self: Table, here: str) -> None:
        if table in self.path.parts and here == place:
            end()

    def broken_staging(self: Table) -> Any:
        ends(self, "before")
        return staging(self)

    def broken_adopt(self: Table, *args: Any) -> Any:
        ends(self, "written")
        files = adopt(self, *args)
        ends(self, "adopted")
        return files

    def broken_replace(self: Table, *args: Any, **named: Any) -> Any:
        done = replace(self, *args, **named)
        ends(self, "committed")
        return done

    Table.staging, Table.adopt, Table.replace = broken_staging, broken_adopt, broken_replace  # type: ignore[method-assign,assignment]


def main(told: dict[str, str]) -> None:
    spark = fasti.spark.session("local[2]", "killed", **QUICK)
    spark.sparkContext.setLogLevel("OFF")
    break_at(told["table"], told["place"], lambda: os.kill(os.getpid(), signal.SIGKILL))
    lake = Lake(told["lake"])
    options = {"step_rows": int(told["step_rows"])}
    run(Workflow(lake, [BRONZE, SILVER], told["address"], options=options), spark)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
