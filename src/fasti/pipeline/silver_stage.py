"""Silver as a table: from bronze, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fasti.pipeline.lake import Lake


def messages_now(lake: Lake, spark: SparkSession) -> DataFrame:
    """One row per message."""
    raise NotImplementedError
