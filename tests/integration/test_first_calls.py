"""A broker that is ready has run every path once: the first calls import nothing and walk no old objects."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import fasti
from fasti.broker.launch import BrokerProcess
from tests.integration.serve_rig import SMALL

_IMPORTED = re.compile(r"^import time: +\d+ \| +\d+ \| +(\S+)$", re.MULTILINE)


def test_the_first_calls_import_nothing(tmp_path: Path) -> None:
    env = {"PYTHONPROFILEIMPORTTIME": "1"}
    with BrokerProcess(tmp_path / "data", env=env, settings=SMALL) as broker:
        started = len(broker.log())
        assert "pyarrow" in _IMPORTED.findall(broker.log()), "the interpreter tells of imports"
        with fasti.connect(broker.address) as client:
            _use(client)
        later = _IMPORTED.findall(broker.log()[started:])
    assert later == []


def _use(client: fasti.Client) -> None:
    """What most clients do first."""
    client.create_topic("jobs", lookahead="50ms")
    producer = client.producer("jobs")
    producer.send(b"now").result()
    sent = producer.send_batch([b"later"] * 50, delay="1h")
    producer.send(b"named", key="k", delay="1h").result()
    messages = client.messages("jobs")
    ids = sent.ids.tolist()
    assert messages.move(id=ids[:20], delay="2h").all_ok
    assert messages.move(key="k", delay="2h").status == "ok"
    assert messages.cancel(id=ids[20:40]).all_ok
    assert messages.cancel(key="k").status == "ok"
    producer.send(b"near", delay="60ms").result()
    with client.consumer("jobs", timeout=30) as consumer:
        for number, message in enumerate(consumer, 1):
            message.ack()
            if number == 2:
                break
        consumer.flush()
    assert client.topic("jobs").counts["scheduled"] == 30


def test_a_full_collection_has_little_to_walk() -> None:
    program = (
        "import gc\n"
        "from fasti.doors import process\n"
        "from fasti.doors.warmup import warm_up\n"
        "warm_up()\n"
        "before = len(gc.get_objects())\n"
        "process._spare_the_collector()\n"
        "print(before, len(gc.get_objects()), gc.get_freeze_count())\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    before, after, frozen = map(int, found.stdout.split())
    assert before > 50_000
    assert after < 1_000
    assert frozen > 50_000
