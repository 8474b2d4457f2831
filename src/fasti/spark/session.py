"""A Spark session that is set up for Fasti."""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from fasti.spark import java
from fasti.spark.source import FastiSource

_DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    # Without it Spark refuses sources that can filter.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_REMOTE = "sc://"


def session(master: str = "local[*]", name: str = "fasti", **conf: Any) -> SparkSession:
    """A session on this machine or any master, with the source `fasti` registered.

        spark = fasti.spark.session()
        spark = fasti.spark.session("spark://host:7077", **{"spark.executor.memory": "4g"})
        spark = fasti.spark.session("sc://host:15002")             # through Spark Connect

    Java 17 or later is used where there is one; else the runtime that `fasti[spark]` brings. If there
    is an active session, that one is returned, with the source registered.
    """
    if master.startswith(_REMOTE):
        return _remote(master, conf)
    active = SparkSession.getActiveSession()
    if active is None:
        home = java.java_home()
        if home is not None:
            os.environ["JAVA_HOME"] = str(home)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.master(master).appName(name)
        for key, value in {**_DEFAULTS, **conf}.items():
            builder = builder.config(key, str(value))
        active = builder.getOrCreate()
    register(active)
    return active


def _remote(address: str, conf: dict[str, Any]) -> SparkSession:
    """A session on a Connect server, which has its own Java and settings of the core."""
    builder = SparkSession.builder.remote(address)
    ours = {key: value for key, value in _DEFAULTS.items() if key.startswith("spark.sql.")}
    for key, value in {**ours, **conf}.items():
        builder = builder.config(key, str(value))
    remote = builder.getOrCreate()
    register(remote)
    return remote


def register(spark: SparkSession) -> None:
    """Makes `format("fasti")` known to a session that somebody else made."""
    spark.dataSource.register(FastiSource)
