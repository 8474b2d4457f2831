"""`fasti bindings` and `fasti produce --subject`."""

from __future__ import annotations

import pytest

from tests.unit.cli.rig import Shell


@pytest.fixture
def bound(shell: Shell) -> Shell:
    """`orders`, and `emails` to bind it to."""
    shell.good("topics", "create", "orders")
    return shell


def test_bindings_are_made_listed_and_removed(bound: Shell) -> None:
    assert bound("bindings", "list", "orders").out == "orders is not bound to another topic.\n"
    said = bound("bindings", "add", "orders", "orders.*.created", "emails")
    assert said.out == "orders: bound to emails by orders.*.created\n"
    again = bound.good("bindings", "add", "orders", "orders.*.created", "emails")
    assert again == {
        "topic": "orders",
        "pattern": "orders.*.created",
        "target": "emails",
        "created": False,
    }
    listed = bound.good("bindings", "list", "orders")
    assert listed == [{"pattern": "orders.*.created", "target": "emails"}]
    assert "orders.*.created" in bound("bindings", "list", "orders").out
    assert bound("bindings", "remove", "orders", "orders.*.created", "emails").code == 0
    gone = bound("bindings", "remove", "orders", "orders.*.created", "emails")
    assert gone.code != 0
    assert "not bound" in gone.err


def test_a_bad_pattern_says_how_it_should_be(bound: Shell) -> None:
    said = bound("bindings", "add", "orders", "a..b", "emails")
    assert said.code != 0
    assert "orders.*.created or orders.>" in said.err


def test_producing_with_a_subject(bound: Shell) -> None:
    bound("bindings", "add", "orders", "orders.>", "emails")
    bound.good("produce", "orders", "hello", "--subject", "orders.new", "--key", "a")
    bound.good("produce", "orders", "bye", "--subject", "users.new")
    found = bound.connect().messages("emails").list(payload=True)
    assert found.column("payload").to_pylist() == [b"hello"]
    assert found.column("subject").to_pylist() == ["orders.new"]
    refused = bound("produce", "orders", "x", "--subject", "orders.*")
    assert refused.code != 0
    assert "subject" in refused.err


def test_the_topic_that_did_not_take_it_is_named(bound: Shell) -> None:
    bound("bindings", "add", "orders", ">", "emails")
    bound.good("produce", "emails", "taken", "--key", "a", "--delay", "1h")
    said = bound("produce", "orders", "new", "--key", "a", "--delay", "1h")
    assert said.code == 1
    assert "in emails: its version is another one, or a live message has the key" in said.out
