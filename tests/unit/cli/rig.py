"""Runs commands inside the test's process, on a broker that stays open between two commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fasti.broker.metrics.counts import Metrics
from fasti.broker.placement import OneShard
from fasti.broker.service import Service
from fasti.broker.shard import Shard
from fasti.cli.main import app
from fasti.client.client import Client
from fasti.client.embedded_transport import EmbeddedTransport
from fasti.config import ShardSettings
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import LocalFiles


@dataclass
class Answer:
    """What a command printed, and with which code it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Of commands that print an object on each line."""
        return [json.loads(line) for line in self.out.splitlines()]


def run_here(*arguments: str, stdin: str | bytes | None = None, **env: str) -> Answer:
    """The `fasti` command in this process: for what is not about being one."""
    result = CliRunner().invoke(app, list(arguments), input=stdin, env={"COLUMNS": "160", **env})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


class Shell:
    """The `fasti` command, and a client of the same broker."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def connect(self, address: str | None = None, *, owner: str = "", **place: Any) -> Client:
        transport = EmbeddedTransport(service=self._service)
        return Client(transport, owner, transport.call("hello")[0])

    def __call__(self, *arguments: str, stdin: str | bytes | None = None) -> Answer:
        return run_here(*arguments, stdin=stdin)

    def good(self, *arguments: str, stdin: str | bytes | None = None) -> Any:
        """The JSON of a command that must end with 0."""
        answer = self(*arguments, "--json", stdin=stdin)
        assert answer.code == 0, answer
        return answer.json

    def lines(self, *arguments: str) -> list[Any]:
        """The JSON objects of a command that must end with 0."""
        answer = self(*arguments, "--json")
        assert answer.code == 0, answer
        return answer.lines


@contextmanager
def opened(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """A broker in a directory; whatever address a command has, it is this one."""
    service = Service(
        OneShard(Shard(FileStorage(LocalFiles(directory)), ShardSettings(segment_bytes=1 << 16))),
        Metrics(),
    )
    shell = Shell(service)
    monkeypatch.setattr("fasti.client.client.connect", shell.connect)
    try:
        yield shell
    finally:
        service.placement.catalogue.close()
