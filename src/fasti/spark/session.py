"""A Spark session that is set up for Fasti."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from fasti.spark import java
from fasti.spark.parallelism import VARIABLE, cores_of
from fasti.spark.source import FastiSource

_DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    # Whether filters are pushed is said for each read: see `pushDownPredicate`.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_REMOTE = "sc://"
# Only what went wrong, and no word about which settings of the log are used.
_QUIET = Path(__file__).with_name("log4j2.properties")


def session(master: str = "local[*]", name: str = "fasti", **conf: Any) -> SparkSession:
    """A session on this machine or any master that knows `format("fasti")`.

        spark = fasti.spark.session()
        spark = fasti.spark.session("spark://host:7077", **{"spark.executor.memory": "4g"})
        spark = fasti.spark.session("sc://host:15002")             # through Spark Connect

    Java 17 or later is used where there is one; else the runtime that `fasti[spark]` brings. Spark
    logs errors only; `spark.sparkContext.setLogLevel("INFO")` tells more. If there is an active
    session, that one is returned, with the settings of `conf` that can still be changed
    (`spark.sql.*`).
    """
    if master.startswith(_REMOTE):
        return _remote(master, conf)
    active = SparkSession.getActiveSession()
    if active is None:
        active = _started(master, name, {key: str(value) for key, value in conf.items()})
    else:
        for key, value in conf.items():
            if key.startswith("spark.sql."):
                active.conf.set(key, str(value))
    register(active)
    return active


def _started(master: str, name: str, conf: dict[str, str]) -> SparkSession:
    home = java.java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    cores = cores_of(master, conf)
    if cores is not None:
        os.environ[VARIABLE] = str(cores)
    settings = {**_DEFAULTS, **conf}
    if "log4j" not in settings.get(_JAVA_OPTIONS, ""):
        quiet = f"-Dlog4j2.configurationFile={_QUIET.as_uri()}"
        settings[_JAVA_OPTIONS] = f"{quiet} {settings.get(_JAVA_OPTIONS, '')}".strip()
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


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
    """Registers `format("fasti")` in a session that was not made here.

    Where this package is installed, Spark finds the source by itself, and there is nothing to do:
    registering it as well would only make Spark warn of it whenever a stream starts. A Connect
    server is told in any case, as it is not known here what is installed there.
    """
    connected = type(spark).__module__.startswith("pyspark.sql.connect")
    if connected or importlib.util.find_spec("pyspark_fasti") is None:
        spark.dataSource.register(FastiSource)
