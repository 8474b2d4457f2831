"""The options of `format("fasti")`: what is refused, and what the refusal says."""

import pickle
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fasti.errors import InvalidArgument
from fasti.spark.options import OPS, OPTIONS, Options


def refused(stream: bool = False, **options: str) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as info:
        Options.reading(options, stream)
    return info.value


def test_names_are_read_in_any_case() -> None:
    options = Options.reading({"TOPIC": "emails", "minpartitions": "4", "dueFROM": "0"})
    assert options["topic"] == "emails"
    assert options["minPartitions"] == 4
    assert options["dueFrom"] == datetime(1970, 1, 1, tzinfo=UTC)
    assert options["view"] == "messages"
    assert not options.given("dueTo")


def test_an_option_that_nobody_knows_is_refused_with_the_nearest() -> None:
    error = refused(topc="emails")
    assert error.message == "format 'fasti' has no option 'topc': did you mean 'topic'?"
    assert "did you mean" not in refused(topic="a", zzzzzz="1").message


def test_an_option_like_no_other_is_refused_with_all_that_there_are() -> None:
    reading = refused(subscribe="emails").message
    assert "'subscribe', but address, token," in reading
    assert "operation" not in reading
    with pytest.raises(InvalidArgument) as info:
        Options.writing({"subscribe": "emails"})
    assert info.value.message.endswith("operation, onConflict, sinkId, txnAppId, txnVersion")
    assert "view" not in info.value.message


def test_the_ops_are_those_of_the_feed_and_of_its_guide() -> None:
    root = Path(__file__).parents[3]
    guide = (root / "docs" / "guides" / "changes.md").read_text()
    rows = guide.partition("| op | what happened |")[2].partition("## How far back")[0]
    names = [row.split("|")[1] for row in rows.splitlines() if row.startswith("| `")]
    told = {op for cell in names for op in re.findall(r"`(\w+)`", cell)}
    assert set(OPS) == told
    code = (root / "src" / "fasti" / "storage" / "transitions.py").read_text()
    made = re.findall(r'(?:_once|_messages|_of_group)\(\s*"(\w+)"', code)
    made += re.findall(r'(?:_of_stage|_log_rows)\(table, event, "(\w+)"', code)
    assert len(made) > 30
    assert set(made) <= set(OPS)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "the option 'topic' is missing: view 'messages' is of one topic"),
        ({"topic": ""}, "'topic' is missing"),
        ({"topic": "a", "view": "everything"}, "expected messages or changes or log or kv"),
        ({"topic": "a", "state": "asleep"}, "expected some of scheduled, ready, leased, dead"),
        ({"topic": "a", "minPartitions": "0"}, "a whole number from 1 on"),
        ({"topic": "a", "minPartitions": "many"}, "a whole number from 1 on"),
        ({"topic": "a", "includeHeaders": "yes"}, "expected true or false"),
        ({"topic": "a", "dueFrom": "2026-11-16"}, "ISO 8601 with a zone"),
        ({"topic": "a", "dueFrom": "tomorrow"}, "ISO 8601 with a zone"),
        ({"view": "changes", "op": "acknowledged"}, "expected some of produced, staged"),
        ({"topic": "a", "snapshotTimeout": "2d"}, "from 1s to 1d"),
        ({"topic": "a", "snapshotTimeout": "soon"}, "a length of time"),
        ({"topic": "a", "address": "http://x"}, "expected HOST:PORT, fasti://HOST:PORT"),
        ({"topic": "a", "address": "embedded:./data"}, "executors can't share"),
        ({"topic": "a", "prefix": "x"}, "not for view 'messages', but for 'kv'"),
        ({"topic": "a", "view": "kv", "state": "dead"}, "not for view 'kv', but for 'messages'"),
        ({"topic": "a", "operation": "produce"}, "option 'operation' is for writing"),
        ({"topic": "a", "view": "log", "startingOffsets": "first"}, "earliest, latest, or JSON"),
        ({"topic": "a", "view": "log", "endingOffsets": "earliest"}, "can't be earliest"),
        ({"topic": "a", "path": "emails"}, "a topic has no path"),
        (
            {"topic": "a", "view": "log", "endingOffsets": "latest", "endingTimestamp": "5"},
            "endingOffsets or endingTimestamp, not both",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_was_expected(
    options: dict[str, str], told: str
) -> None:
    assert told in refused(**options).message


def test_only_changes_and_logs_are_streamed() -> None:
    assert "can't be streamed" in refused(stream=True, topic="a").message
    assert Options.reading({"view": "changes"}, stream=True)["topic"] is None


def test_a_token_is_never_shown() -> None:
    options = Options.reading({"topic": "a", "token": "s3cret"})
    assert "s3cret" not in repr(options)
    assert pickle.loads(pickle.dumps(options))["token"] == "s3cret"


def test_the_authority_travels_with_the_address() -> None:
    options = Options.reading(
        {"topic": "a", "address": "fasti+tls://one:7170,two:7170", "tlsCa": "/etc/ca.pem"}
    )
    assert options["address"] == "fasti+tls://one:7170,two:7170#/etc/ca.pem"


def test_every_option_says_what_it_is_for() -> None:
    for option in OPTIONS:
        assert option.meaning.endswith(".")
        assert option.views or option.writing
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)
