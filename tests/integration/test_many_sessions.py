"""A thousand consumers at once, from two processes, at one broker."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from fasti.broker.launch import BrokerProcess
from fasti.doors.without_pandas import hide_pandas_from_arrow
from tests.conformance.protocol_client import Client, rows, statuses

SESSIONS = 1000
PROCESSES = 2
SHARE = 5
MIB = 1 << 20


def measured(process: BrokerProcess) -> tuple[int, int]:
    """Bytes and threads of the broker."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    bytes_, threads = (int(status.split(name)[1].split()[0]) for name in ("RssAnon:", "Threads:"))
    return bytes_ * 1024, threads


def consume(address: str, names: list[str], orders: Connection) -> None:
    """One of the client processes: does as it is told, all sessions together."""
    hide_pandas_from_arrow()
    with Client(address) as client:
        sessions = [client.consume("crowd", name) for name in names]
        for session in sessions:
            session.ask("clock")
        orders.send("open")
        orders.recv()
        for session in sessions:
            session.credit(SHARE)
        got = []
        for session in sessions:
            ids = [message["id"] for message in session.leased(SHARE)]
            assert session.ask("heartbeat")["held"] == SHARE
            assert statuses(session.use("ack", ids)) == ["ok"] * SHARE
            got += ids
        orders.send(got)
        orders.recv()
        left = [chunk for session in sessions for chunk in session.finish()]
        orders.send(len(left))


@pytest.mark.long
@pytest.mark.one_shard
def test_a_thousand_sessions_share_what_there_is(tmp_path: Path) -> None:
    spawned = multiprocessing.get_context("spawn")
    # However slow the machine: those that wait for the others are not taken for dead.
    settings = {"limits.session_silence": "10m"}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        address = f"{broker.host}:{broker.port}"
        with Client(address) as client:
            # However long it takes until the last of them has its turn.
            crowd = {"partitions": 8, "lease_us": 3_600_000_000}
            client.call("create_topic", {"topic": "crowd", "settings": crowd})
            before, threads_before = measured(broker)
            workers: list[tuple[Any, Connection]] = []
            for number in range(PROCESSES):
                ours, theirs = spawned.Pipe()
                names = [f"c-{n}" for n in range(number, SESSIONS, PROCESSES)]
                worker = spawned.Process(target=consume, args=(address, names, theirs), daemon=True)
                worker.start()
                theirs.close()
                workers.append((worker, ours))
            assert [orders.recv() for _, orders in workers] == ["open"] * PROCESSES
            opened, threads = measured(broker)
            # Enough for everybody, and everybody gets a share.
            sent: set[int] = set()
            for partition in range(8):
                batch = rows(payload=[b"x" * 100] * (SESSIONS * SHARE // 8))
                (found,) = client.send("crowd", batch, metadata={"partition": partition})
                sent |= {outcome.id for outcome in found}
            for _, orders in workers:
                orders.send("go")
            got = [id_ for _, orders in workers for id_ in orders.recv()]
            busy, _ = measured(broker)
            assert len(got) == SESSIONS * SHARE
            assert set(got) == sent, "each message once"
            counts = client.call("count", {"topic": "crowd"})["counts"]
            assert (counts["done"], counts["leased"], counts["ready"]) == (len(got), 0, 0)
            for _, orders in workers:
                orders.send("end")
            assert [orders.recv() for _, orders in workers] == [0] * PROCESSES
            for worker, orders in workers:
                worker.join(60)
                assert worker.exitcode == 0
                orders.close()
            text = client.call("metrics")["text"]
            assert "\nfasti_sessions 0.0\n" in text, "all closed"
            closed, threads_after = measured(broker)
            print(
                f"{SESSIONS} sessions: {(opened - before) / SESSIONS / 1024:.0f} KiB each open,"
                f" {(busy - before) / SESSIONS / 1024:.0f} KiB after {SHARE} messages each,"
                f" {(closed - before) / MIB:.0f} MiB in all when closed;"
                f" threads {threads_before}, {threads}, {threads_after}"
            )
            assert opened - before < SESSIONS * MIB // 2
            assert busy - before < SESSIONS * MIB
            # Their credit is gone with them: what comes now waits for somebody who is there.
            client.send("crowd", rows(payload=[b"later"]))
            assert client.call("count", {"topic": "crowd"})["counts"]["ready"] == 1
        assert broker.stop() == 0
        assert "Traceback" not in broker.log()
