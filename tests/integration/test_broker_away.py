"""Workers say when the broker is away and when it is back: once, not with every try."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from tests.integration.serve_rig import SEGMENTS, WAIT_S


class Lines(logging.Handler):
    """What is logged of the broker's presence."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self.levels: list[str] = []
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "the broker is" in record.getMessage():
            with self._changed:
                self.levels.append(record.levelname)
                self.texts.append(record.getMessage())
                self._changed.notify_all()

    def await_count(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.levels) >= count, WAIT_S), self.texts


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger = logging.getLogger("fasti.client")
    level, made = logger.level, Lines()
    logger.addHandler(made)
    logger.setLevel(logging.INFO)
    yield made
    logger.removeHandler(made)
    logger.setLevel(level)


def test_one_warning_and_one_line_for_all_workers_of_an_app(
    tmp_path_factory: pytest.TempPathFactory, lines: Lines
) -> None:
    with BrokerProcess(tmp_path_factory.mktemp("data"), settings=SEGMENTS) as broker:
        app = fasti.App(broker.address)
        handled = threading.Semaphore(0)

        @app.on("emails", concurrency=2)
        def send(payload: bytes) -> None:
            handled.release()

        @app.on("bills")
        def bill(payload: bytes) -> None:
            handled.release()

        with app:
            for each in (send, bill):
                each.later(b"x").result(WAIT_S)
                assert handled.acquire(timeout=WAIT_S)
            for times in (1, 2):
                broker.kill()
                lines.await_count(2 * times - 1)
                broker.start()
                lines.await_count(2 * times)
                for each in (send, bill):
                    each.later(b"x").result(WAIT_S)
                    assert handled.acquire(timeout=WAIT_S)
        assert lines.levels == ["WARNING", "INFO"] * 2
        assert "waits and connects again by itself" in lines.texts[0]
        assert lines.texts[1].startswith("the broker is back after ")
        assert lines.texts[1].endswith(" s")
