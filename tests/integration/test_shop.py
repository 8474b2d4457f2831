"""The shop of examples/shop as a whole: a broker, workers and the API, each a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from tests.integration.app_rig import WAIT_S, Mailbox
from tests.integration.serve_rig import SEGMENTS

SHOP = Path(__file__).parents[2] / "examples" / "shop"
ANN = {"email": "ann@example.org"}


def test_its_own_tests_pass() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=SHOP, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def process(*command: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=SHOP,
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as started:
        try:
            yield started
        finally:
            started.terminate()
            try:
                # uvicorn ends itself by the signal, when it is done.
                assert started.wait(WAIT_S) in (0, -signal.SIGTERM)
            finally:
                started.kill()


def address_of(server: subprocess.Popen[str]) -> str:
    """Where uvicorn listens, as it says."""
    assert server.stderr is not None
    for line in server.stderr:
        if found := re.search(r"running on (http://\S+)", line):
            return found.group(1)
    raise AssertionError("the API did not start")


class Shop:
    """The API as curl would use it, and what the workers mailed."""

    def __init__(self, url: str, mails: Mailbox, client: fasti.Client) -> None:
        self.url, self.mails, self.client = url, mails, client

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)["detail"]

    def check_out(self, name: str, card: str) -> tuple[int, Any]:
        payment = {**ANN, "card": card, "total": "19.90"}
        return self.call("POST", f"/carts/{name}/checkout", payment)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(tmp_path / "data", settings=SEGMENTS))
        mails = Mailbox(tmp_path / "mails")
        stack.callback(mails.close)
        environment = {
            **os.environ,
            "FASTI_ADDRESS": broker.address,
            "SHOP_OUTBOX": str(mails.path),
            "SHOP_REMIND_AFTER": "300ms",
            "PYTHONUNBUFFERED": "1",
        }
        run = ("fasti", "run", "tasks:app", "--workers", "2")
        workers = stack.enter_context(process(*run, environment=environment))
        # What they log is read, so that they are never held up.
        threading.Thread(target=workers.stderr.read, daemon=True).start()  # type: ignore[union-attr]
        serve = ("uvicorn", "web:web", "--port", "0")
        server = stack.enter_context(process(*serve, environment=environment))
        client = stack.enter_context(fasti.connect(broker.address))
        yield Shop(address_of(server), mails, client)


def test_the_shop_as_a_whole(shop: Shop) -> None:
    # A cart that is left, and one that is paid, with a bank that is busy at first.
    assert shop.call("PUT", "/carts/left", {**ANN, "items": {"7": 2}}) == (200, {"version": 1})
    assert shop.mails.line() == "ann@example.org: 2 things wait in your cart"
    assert shop.check_out("paid", "card-busy") == (
        202,
        {"order": "paid", "reminder": "not_found"},
    )
    assert shop.mails.line() == "ann@example.org: order paid: 19.90 EUR, thank you"
    # One that is declined: dead, with its reason.
    assert shop.check_out("bad", "card-empty")[0] == 202
    assert shop.mails.line() == "ann@example.org: order bad was declined"
    assert shop.call("DELETE", "/orders/paid")[0] in (404, 409)
    assert shop.call("DELETE", "/orders/unknown") == (404, "no such order is pending")
    # A payload that makes no sense is the caller's error.
    assert shop.call("PUT", "/carts/x", {"email": "x"})[0] == 422
    # Both workers put the schedule; there is one, and it can be run now.
    schedules = shop.client.schedules("cron.shop")
    assert [(each.name, each.version) for each in schedules.list()] == [("report", 1)]
    assert schedules.run_now("report").ok
    assert re.fullmatch(r"boss@example.org: \d\d \w+: 1 charges failed", shop.mails.line())
