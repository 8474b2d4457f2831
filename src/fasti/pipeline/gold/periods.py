"""Minutes, hours and days: the periods that gold is computed for, always of UTC.

A period is named by its `grain` and its `start`. What can be added up is counted by the minute first
and added up from there; what can't, such as percentiles, is computed for each grain from its own rows.
Nothing here depends on the time zone of a session.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fasti.model import DAY_US, HOUR_US, MINUTE_US

GRAINS: dict[str, int] = {"minute": MINUTE_US, "hour": HOUR_US, "day": DAY_US}
PERIOD = ["grain", "start"]


def start_of(moment: Column | str, length_us: int) -> Column:
    """When the period of that length began in which a moment lies."""
    micros = F.unix_micros(F.col(moment) if isinstance(moment, str) else moment)
    return F.timestamp_micros(micros - F.pmod(micros, F.lit(length_us)))


def day_of(moment: Column | str) -> Column:
    """The day of a moment, as text: 2026-12-24."""
    micros = F.unix_micros(F.col(moment) if isinstance(moment, str) else moment)
    days = F.floor(micros / F.lit(DAY_US)).cast("int")
    return F.date_from_unix_date(days).cast("string")


def within(rows: DataFrame, moment: str, days: Sequence[str] | None) -> DataFrame:
    """Those rows whose moment lies on one of the days; all that have one where `days` is None."""
    if days is None:
        return rows.where(F.col(moment).isNotNull())
    return rows.where(day_of(moment).isin(*days) if days else F.lit(False))


def added_up(minutes: DataFrame, names: Sequence[str], sums: Sequence[str]) -> DataFrame:
    """Counts by the minute (`start`) → the same by minute, hour and day.

    `names` are the columns that rows are counted by, `sums` those that are added up.
    """
    return (
        each_grain(minutes)
        .groupBy(*names, *PERIOD)
        .agg(*(F.sum(name).cast("long").alias(name) for name in sums))
    )


def each_grain(minutes: DataFrame) -> DataFrame:
    """Each row of a minute three times: as that of its minute, its hour and its day."""
    periods = [
        F.struct(F.lit(grain).alias("grain"), start_of("start", length).alias("start"))
        for grain, length in GRAINS.items()
    ]
    others = [F.col(name) for name in minutes.columns if name != "start"]
    return minutes.select(*others, F.inline(F.array(*periods)))
