"""Several processes on one page of metrics."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from fasti.doors.metric_pages import merge_pages

_PAGE = """\
# HELP fasti_up Whether the shard answers.
# TYPE fasti_up gauge
fasti_up{{shard="{shard}"}} 1.0
# HELP fasti_connections Connections of clients.
# TYPE fasti_connections gauge
fasti_connections {shard}.0
# HELP fasti_lateness_seconds From due to user code.
# TYPE fasti_lateness_seconds histogram
fasti_lateness_seconds_bucket{{le="1.0",topic="a}} {{,shard=\\"7\\" b"}} 3.0
fasti_lateness_seconds_bucket{{le="+Inf",topic="a}} {{,shard=\\"7\\" b"}} 4.0
fasti_lateness_seconds_count{{topic="a}} {{,shard=\\"7\\" b"}} 4.0
fasti_lateness_seconds_sum{{topic="a}} {{,shard=\\"7\\" b"}} 9.0
"""


def test_families_are_there_once_and_samples_are_told_apart() -> None:
    page = merge_pages({number: _PAGE.format(shard=number) for number in range(3)})
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert page.count("# HELP") == page.count("# TYPE") == len(families) == 3
    up = [sample.labels for sample in families["fasti_up"].samples]
    assert up == [{"shard": str(number)} for number in range(3)]
    connections = {s.labels["process"]: s.value for s in families["fasti_connections"].samples}
    assert connections == {"0": 0.0, "1": 1.0, "2": 2.0}
    lateness = families["fasti_lateness_seconds"].samples
    assert len(lateness) == 12
    assert {sample.labels["topic"] for sample in lateness} == {'a} {,shard="7" b'}
    assert [sample.labels["process"] for sample in lateness[::4]] == ["0", "1", "2"]


def test_a_family_that_only_one_of_them_has_is_there_too() -> None:
    other = "# HELP only Of one.\n# TYPE only gauge\nonly 1.0\n"
    page = merge_pages({0: _PAGE.format(shard=0), 4: other})
    assert page.endswith('only{process="4"} 1.0\n')


def test_an_empty_page_adds_nothing() -> None:
    assert merge_pages({0: "", 1: ""}) == ""
