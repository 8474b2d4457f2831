"""Fasti and Spark: topics as DataFrames, batch and streaming.

    import fasti.spark

    spark = fasti.spark.session()
    emails = spark.read.format("fasti").option("topic", "emails").load()

Needs the extra `fasti[spark]`.
"""

try:
    from fasti.spark.apply import apply
    from fasti.spark.progress import behind
    from fasti.spark.session import register, session
    from fasti.spark.workers import Worker, consume
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("pyspark", "pandas"):
        raise
    raise ModuleNotFoundError(
        f"fasti.spark needs {error.name}, which is not installed: pip install 'fasti[spark]'",
        name=error.name,
    ) from error

__all__ = ["Worker", "apply", "behind", "consume", "register", "session"]
