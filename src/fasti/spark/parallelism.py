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
    """Of this session's Spark, as far as anybody knows."""
    told = os.environ.get(VARIABLE, "")
    return int(told) if told.isdecimal() and int(told) else os.cpu_count() or 1


def cores_of(master: str, conf: Mapping[str, str]) -> int | None:
    """Of a session that is about to be made; None if nobody can tell yet."""
    told = conf.get("spark.default.parallelism") or conf.get("spark.cores.max")
    if told and told.isdecimal():
        return int(told)
    found = _LOCAL.fullmatch(master)
    if found is not None:
        number = found[1] or "1"
        return os.cpu_count() or 1 if number == "*" else int(number)
    each, many = conf.get("spark.executor.cores"), conf.get("spark.executor.instances")
    if each and many and each.isdecimal() and many.isdecimal():
        return int(each) * int(many)
    return None
