"""Spark's own servers, from the pip package, on free ports of this machine; stopped by their pids."""

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyspark

from fasti.spark import java

_HOME = Path(pyspark.__file__).parent
_START_S = 120.0
# Several Javas on one small machine.
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# Plans are interpreted: to compile one takes longer than these few rows.
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

# No job begins before every worker is there, however long Java takes to start.
ALL_WORKERS = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    "spark.cores.max": "2",
}


class Server:
    """A Java process that tells on stderr when it is ready."""

    def __init__(self, command: list[str], ready: str, memory: str = "256m") -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._told: list[str] = []
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=_environment(memory),
            text=True,
            # It may start others, which end with it.
            start_new_session=True,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self._ready = re.compile(ready)

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.put(line)
        self._lines.put(None)

    def found(self) -> str:
        """What it tells when it is ready."""
        while True:
            try:
                line = self._lines.get(timeout=_START_S)
            except queue.Empty:
                line = None
            assert line is not None, "".join(self._told)
            self._told.append(line)
            found = self._ready.search(line)
            if found is not None:
                return found[1] if self._ready.groups else found[0]

    def stop(self) -> None:
        """Ends it, and waits until it has."""
        self._process.terminate()
        try:
            self._process.wait(_START_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._reading.join(_START_S)
        if self._process.stderr is not None:
            self._process.stderr.close()


def _environment(memory: str) -> dict[str, str]:
    home = java.java_home()
    return {
        **os.environ,
        **({"JAVA_HOME": str(home)} if home is not None else {}),
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": memory,
        "SPARK_DAEMON_JAVA_OPTS": _QUICK,
        "PYSPARK_PYTHON": sys.executable,
    }


@contextlib.contextmanager
def standalone(place: Path, workers: int = 2) -> Iterator[str]:
    """A master and its workers, a core each: its address."""
    run = str(_HOME / "bin" / "spark-class")
    ports = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with contextlib.ExitStack() as stack:
        master = Server(
            [run, "org.apache.spark.deploy.master.Master", *ports],
            r"Starting Spark master at (spark://\S+)",
        )
        stack.callback(master.stop)
        address = master.found()
        command = [run, "org.apache.spark.deploy.worker.Worker", *ports]
        command += ["--cores", "1", "--memory", "600m", "--work-dir", str(place), address]
        started = [Server(command, "Successfully registered with master") for _ in range(workers)]
        for each in started:
            stack.callback(each.stop)
        for each in started:
            each.found()
        yield address


@contextlib.contextmanager
def connect(master: str, **conf: str) -> Iterator[str]:
    """A Connect server on a master: its address."""
    given = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.executor.memory": "512m",
        "spark.driver.extraJavaOptions": _QUICK,
        "spark.executor.extraJavaOptions": _QUICK,
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        **INTERPRETED,
        **ALL_WORKERS,
        **conf,
    }
    command = [str(_HOME / "bin" / "spark-submit")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += ["--master", master]
    for key, value in given.items():
        command += ["--conf", f"{key}={value}"]
    started = r"Spark Connect server started at: \S*:(\d+)"
    server = Server([*command, "spark-internal"], started, memory="768m")
    try:
        yield f"sc://127.0.0.1:{server.found()}"
    finally:
        server.stop()
