"""The end of the demo: the data pipeline over what happened, in a process of its own.

A process, because Spark's JVM is loud and large, and because whatever goes wrong there is told and
the demo still ends well.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A JVM that lives for seconds has no use for its best compiler.
_CONF = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
}
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Piped:
    """What came of it: the figures, or why there are none."""

    lake: Path
    figures: dict[str, Any] = field(default_factory=dict)
    trouble: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        trouble = {"trouble": self.trouble} if self.trouble else {}
        return {"lake": str(self.lake), **self.figures, **trouble}


def run(address: str, lake: Path, tell: Tell) -> Piped:
    """Runs it while the broker is there; `tell` hears of each stage that ended."""
    from fasti.pipeline import local

    if not local.installed():
        return Piped(lake, trouble=local.HINT)
    command = [sys.executable, "-m", "fasti", "pipeline", "once", "--json"]
    command += ["--lake", str(lake), "--address", address, "--master", "local[2]"]
    for name, value in _CONF.items():
        command += ["--conf", f"{name}={value}"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line.strip())
            stage, colon, _ = line.partition(":")
            if colon:
                tell(stage.strip())
        told = process.stdout.read()
    if process.returncode:
        last = next((line for line in reversed(lines) if line), "it ended without a word")
        return Piped(lake, trouble=f"the pipeline failed: {last}")
    return Piped(lake, json.loads(told))
