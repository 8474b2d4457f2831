"""`fasti call`: a request from the command line."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.unit.cli.rig import Shell


@pytest.fixture(autouse=True)
def replier(shell: Shell) -> Iterator[None]:
    """Somebody who answers by the payload in capitals."""
    shell.good("topics", "create", "prices")
    with shell.connect() as client:
        consumer = client.consumer("prices")

        def work() -> None:
            for message in consumer:
                message.reply(
                    message.payload.upper(), headers={"x": "y"}, content_type="text/plain"
                )

        thread = threading.Thread(target=work)
        thread.start()
        yield
        consumer.stop()
        thread.join()


def test_the_answer_is_printed(shell: Shell) -> None:
    assert shell("call", "prices", "abc", "--timeout", "60s").out == "ABC"
    assert shell("call", "prices", "-", "--timeout", "60s", stdin="piped").out == "PIPED"
    told = shell.good("call", "prices", "abc", "--timeout", "60s", "--header", "a=b")
    assert told == {"payload": "ABC", "headers": {"x": "y"}, "content_type": "text/plain"}


def test_no_answer_is_an_error_that_tells_why(shell: Shell) -> None:
    shell.good("topics", "create", "silent")
    late = shell("call", "silent", "abc", "--timeout", "1s")
    assert late.code == 25
    assert "no consumer took the request" in late.err
    assert shell("call", "nowhere", "abc").code == 12


def test_inboxes_are_not_listed(shell: Shell) -> None:
    with shell.connect() as client:
        client.call("prices", b"?", timeout="60s")
        names = [row["topic"] for row in shell.good("topics", "list")]
        assert names == ["emails", "prices"]
        every = [row["topic"] for row in shell.good("topics", "list", "--all")]
        assert len(every) == 3
        assert every[0].startswith("_inbox.")
    assert [row["topic"] for row in shell.good("topics", "list", "--all")] == [
        "emails",
        "prices",
    ]
