"""NATS servers on this machine, for `fasti cluster up`: where the program is, and what it is told."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fasti.cluster.nats import NatsConnection, NatsOptions
from fasti.doors.cluster_plan import NATS_HOST, ClusterPlan
from fasti.errors import FastiError

# Beside the journals; blocks have no bound of their own.
_BLOCKS_BYTES = 8 << 30
_LOOK_S = 0.1
_SYSTEM_USER = "system"
# Runs before the server in its process: when the one that started it is gone, however that ended, so is the
# server. Where the system can't do that (it is Linux's) nothing is lost but that.
_TIED = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
try:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
except AttributeError:
    pass
if os.getppid() == parent:
    os.execv(sys.argv[2], sys.argv[2:])
"""


def find_server() -> str:
    """The program. Raises an error that says how to get it."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise FastiError(
            "`fasti cluster up` needs nats-server, which is not installed: pip install 'fasti[cluster]'"
        )
    return found


def tied(command: list[str], parent: int) -> list[str]:
    """The command, in a process that ends with `parent`, or with the thread that starts it."""
    return [sys.executable, "-I", "-S", "-c", _TIED, str(parent), *command]


def server_command(program: str, config: Path, parent: int) -> list[str]:
    """Its process is tied to that of `parent`."""
    return tied([program, "-c", str(config)], parent)


def write_config(plan: ClusterPlan, number: int) -> Path:
    """The settings of one of the servers, and how brokers ask it for them."""
    system_credentials(plan).write_text(f"{_SYSTEM_USER}:{_SYSTEM_USER}\n")
    name = f"nats{number + 1}"
    routes = ", ".join(f'"nats://{NATS_HOST}:{port}"' for port in plan.routes)
    cluster = f'cluster {{ name: fasti, listen: "{NATS_HOST}:{plan.routes[number]}", routes: [{routes}] }}\n'
    store = str(plan.directory / name).replace("\\", "\\\\").replace('"', '\\"')
    # Room that is not set aside: a disk that has less is full when it is.
    room_bytes = plan.shards * plan.journal_bytes + _BLOCKS_BYTES
    path = plan.directory / f"{name}.conf"
    path.write_text(
        f"""server_name: {name}
listen: "{NATS_HOST}:{plan.ports[number]}"
# A pack of a shard's journal has up to 4 MiB; with less, large batches go in parts, one after the other.
max_payload: 8MB
# What is acknowledged is on the disk.
jetstream {{ store_dir: "{store}", sync_interval: always, max_file: {room_bytes} }}
# Brokers ask each server for its settings and for damage.
accounts {{ $SYS {{ users: [{{ user: {_SYSTEM_USER}, password: {_SYSTEM_USER} }}] }} }}
"""
        + (cluster if len(plan.ports) > 1 else "")
    )
    return path


def system_credentials(plan: ClusterPlan) -> Path:
    """The file by which brokers are users of the servers' system account; nobody else reaches them anyway."""
    return plan.directory / "nats-system.txt"


def wait_for_servers(plan: ClusterPlan, is_over: Callable[[], bool]) -> bool:
    """Returns when they have found each other and keep streams; False if it is over before."""
    while not is_over():
        try:
            connection = NatsConnection(NatsOptions(plan.nats_urls, timeout_s=2.0))
        except FastiError:
            time.sleep(_LOOK_S)
            continue
        try:
            connection.stream_state("fasti-no-such-stream")
        except FastiError:
            time.sleep(_LOOK_S)
        else:
            return True
        finally:
            connection.close()
    return False
