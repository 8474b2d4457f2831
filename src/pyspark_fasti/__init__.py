"""Found by Spark by its name: brings the data source `fasti`."""

from fasti.spark.source import FastiSource as DefaultSource

__all__ = ["DefaultSource"]
