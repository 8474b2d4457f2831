"""Reads through each server's own copy of a stream, and tells which messages it can give.

A consumer without a replica runs on one of the servers that keep the stream, and reads that server's files; which
one is told when it is made, so some are made until every server had one. It asks for headers only: the server
reads the whole message and compares its checksum, and sends some bytes. What it can't read it leaves out.

It is done in steps, each of some hundred messages, so that whoever drives it sets the pace. One thread at a time.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from fasti.cluster.damage import Run
from fasti.cluster.nats import Answer, NatsConnection
from fasti.errors import FastiError, Unavailable

_BATCH = 250
_PULL_S = 5.0
_IDLE_NS = 30_000_000_000
# Servers are chosen by turns, but not by ours alone.
_TRIES_PER_SERVER = 8


class RollCall:
    """Of one stream. `rolls` has what each server gave, when `steps` has come to its end."""

    def __init__(self, connection: NatsConnection, stream: str, servers: Collection[str]) -> None:
        self._connection, self.stream = connection, stream
        self._servers = set(servers)
        self.rolls: dict[str, list[Run]] = {}

    def steps(self) -> Iterator[None]:
        """Raises `TimedOut` or `Unavailable`: then nothing is known."""
        for _ in range(_TRIES_PER_SERVER * max(1, len(self._servers))):
            name = f"fasti-roll-{secrets.token_hex(6)}"
            server = self._make(name)
            if server not in self.rolls:
                runs: list[Run] = []
                yield from self._read(name, runs)
                self.rolls[server] = runs
            # One that is given up before goes by itself, since nobody asks it for anything.
            with suppress(FastiError):
                self._request(f"CONSUMER.DELETE.{self.stream}.{name}", {})
            if self._servers <= self.rolls.keys():
                return
            yield
        raise Unavailable(f"not every server that keeps {self.stream} could be read")

    def _make(self, name: str) -> str:
        """A consumer; the server on which it is."""
        config = {
            "name": name,
            "ack_policy": "none",
            "deliver_policy": "all",
            "num_replicas": 1,
            "mem_storage": True,
            "headers_only": True,
            "inactive_threshold": _IDLE_NS,
        }
        request = {"stream_name": self.stream, "action": "create", "config": config}
        made = self._request(f"CONSUMER.CREATE.{self.stream}.{name}", request)
        return str((made.get("cluster") or {}).get("leader") or self._connection.server_name)

    def _read(self, name: str, runs: list[Run]) -> Iterator[None]:
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{name}"
        request = json.dumps({"batch": _BATCH, "no_wait": True}).encode()
        while True:
            answers = self._connection.gather(
                subject,
                request,
                _PULL_S,
                lambda answer, number: _is_end(answer) or number == _BATCH,
            )
            if not answers or not (_is_end(answers[-1]) or len(answers) == _BATCH):
                raise Unavailable(f"a copy of {self.stream} could not be read to its end")
            for answer in answers:
                if not _is_end(answer):
                    _add(runs, _sequence(answer.reply_to))
            if _is_end(answers[-1]):
                return
            yield

    def _request(self, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
        data = json.dumps(dict(request)).encode()
        told: dict[str, Any] = json.loads(self._connection.ask(f"$JS.API.{name}", data, _PULL_S))
        if "error" in told:
            raise Unavailable(f"NATS refuses {name}: {told['error'].get('description', '')}")
        return told


def _is_end(answer: Answer) -> bool:
    return "Status" in answer.headers


def _sequence(reply_to: str) -> int:
    """`$JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>...`, or that behind a domain and an account."""
    tokens = reply_to.split(".")
    return int(tokens[5] if len(tokens) == 9 else tokens[7])


def _add(runs: list[Run], sequence: int) -> None:
    if runs and runs[-1][1] + 1 == sequence:
        runs[-1] = (runs[-1][0], sequence)
    else:
        runs.append((sequence, sequence))
