"""Fasti and Spark: topics as DataFrames, batch and streaming.

    import fasti.spark

    spark = fasti.spark.session()
    emails = spark.read.format("fasti").option("topic", "emails").load()

Needs the extra `fasti[spark]`.
"""

from fasti.spark.apply import apply
from fasti.spark.progress import behind
from fasti.spark.session import register, session
from fasti.spark.workers import Worker, consume

__all__ = ["Worker", "apply", "behind", "consume", "register", "session"]
