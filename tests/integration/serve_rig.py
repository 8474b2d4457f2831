"""What the tests of the broker's process share."""

from __future__ import annotations

import json
import os
import select
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import fasti
from fasti.broker.launch import BrokerProcess
from tests.conformance.protocol_client import Client

WAIT_S = 60.0
# Files of a broker that starts and ends sooner: segments are filled with zeros in advance.
SEGMENTS = {"segment_size": "1MiB"}
SMALL = {**SEGMENTS, "memory": "64MiB", "leases_max": 4096}


@contextmanager
def emptied(client: fasti.Client) -> Iterator[fasti.Client]:
    """For tests that all use the same names: nothing is left of one for the next."""
    yield client
    for topic in client.topics():
        client.delete_topic(topic.name)


def client_of(broker: BrokerProcess, token: str | None = None) -> Client:
    return Client(f"{broker.host}:{broker.port}", token)


class Answer(NamedTuple):
    status: int
    kind: str
    body: bytes
    headers: dict[str, str]

    def json(self) -> Any:
        return json.loads(self.body)


class HasHttp(Protocol):
    @property
    def http(self) -> str | None: ...


def ask(broker: HasHttp, path: str, token: str = "", trust: ssl.SSLContext | None = None) -> Answer:
    """A GET; refusals are answers like any other."""
    request = urllib.request.Request(f"{broker.http}{path}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S, context=trust) as reply:
            return _answer(reply.status, reply)
    except urllib.error.HTTPError as refused:
        with refused:
            return _answer(refused.code, refused)


def _answer(status: int, reply: Any) -> Answer:
    headers = {name.lower(): value for name, value in reply.headers.items()}
    return Answer(status, reply.headers.get_content_type(), reply.read(), headers)


def children(pid: int) -> list[int]:
    """Processes that a process started and that run."""
    found: list[int] = []
    # Not what its threads say: a child whose thread ends meanwhile may be passed over.
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # A process that has just ended.
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(stat.parent.name))
    return sorted(found)


class Watched:
    """A process that is not ours to wait for: tells when it has ended."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    def wait(self) -> None:
        ended, _, _ = select.select([self._descriptor], [], [], WAIT_S)
        os.close(self._descriptor)
        assert ended, "the process goes on"
