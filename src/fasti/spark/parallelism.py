"""How many tasks a read should have: as many as Spark has cores.

A source is planned in a process of its own, which Spark doesn't tell how many cores there are. A
session that was made by `fasti.spark.session` leaves word in the environment; else it is taken that
Spark has the cores of the driver's machine, and `minPartitions` says better.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

VARIABLE = "FASTI_SPARK_CORES"
_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\d+)?\])?")


def cores() -> int:
    """The cores of this session's Spark, or of this machine where Spark doesn't say."""
    text = os.environ.get(VARIABLE, "")
    return int(text) if text.isdecimal() and int(text) else os.cpu_count() or 1


def cores_of(master: str, conf: Mapping[str, str]) -> int | None:
    """The cores of a session that is about to be created; None if that is not known yet."""
    text = conf.get("spark.default.parallelism") or conf.get("spark.cores.max")
    if text and text.isdecimal():
        return int(text)
    match = _LOCAL.fullmatch(master)
    if match is not None:
        number = match[1] or "1"
        return os.cpu_count() or 1 if number == "*" else int(number)
    per_executor, executors = conf.get("spark.executor.cores"), conf.get("spark.executor.instances")
    if per_executor and executors and per_executor.isdecimal() and executors.isdecimal():
        return int(per_executor) * int(executors)
    return None
