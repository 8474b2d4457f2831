"""`fasti forecast`: what is coming, as bars in the terminal."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import typer

from fasti.cli import moments, output
from fasti.cli.bars import print_bars
from fasti.cli.connection import Client, Topic, with_client
from fasti.cli.options import AsJson, duration, moment
from fasti.model import DAY_US, MINUTE_US

_BARS = 24
# With more lines than this a picture is not readable.
_BARS_MAX = 1_000


@with_client
def forecast(
    client: Client,
    topic: Topic,
    bucket: Annotated[timedelta | None, duration("The length of a bar. Default: 1h.")] = None,
    begin: Annotated[
        datetime | None,
        moment("From then on: a time in ISO 8601, or +1h, -1d from now. Default: now.", "--from"),
    ] = None,
    end: Annotated[
        datetime | None, moment(f"Up to then. Default: {_BARS} bars later.", "--to")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """How many messages fall due when: a bar for each hour, or as long as you like.

    [dim]fasti forecast emails --bucket 1d --to +30d[/dim]
    """
    bucket = timedelta(hours=1) if bucket is None else bucket
    bucket_us = bucket // timedelta(microseconds=1)
    if not bucket_us:
        raise typer.BadParameter("a bar must have a length", param_hint="--bucket")
    begin_us = moments.now_us() if begin is None else moments.microseconds(begin)
    begin_us = _floor(begin_us, bucket_us)
    end_us = begin_us + _BARS * bucket_us if end is None else moments.microseconds(end)
    if not 0 < end_us - begin_us <= _BARS_MAX * bucket_us:
        raise typer.BadParameter(f"that makes no bars, or more than {_BARS_MAX:,}: see --bucket")
    table = client.messages(topic).forecast(bucket, start=begin_us, end=end_us)
    counts = dict(zip(table["start_us"].to_pylist(), table["count"].to_pylist(), strict=True))
    bars = [(at, counts.get(at, 0)) for at in range(begin_us, end_us, bucket_us)]
    if as_json:
        rows = [{"start": moments.iso(at), "count": count} for at, count in bars]
        output.print_json({"topic": topic, "bucket_us": bucket_us, "buckets": rows})
    else:
        _print(bars, bucket_us)


def _floor(at_us: int, bucket_us: int) -> int:
    """The beginning of the bar in which a time lies, so that bars begin at whole local hours."""
    offset = _local(at_us).utcoffset() or timedelta()
    offset_us = offset // timedelta(microseconds=1)
    return (at_us + offset_us) // bucket_us * bucket_us - offset_us


def _local(at_us: int) -> datetime:
    try:
        return datetime.fromtimestamp(at_us / 1e6).astimezone()
    except (OverflowError, ValueError):
        raise typer.BadParameter("a bar lies beyond the calendar (1 to 9999): see --to") from None


def _print(bars: list[tuple[int, int]], bucket_us: int) -> None:
    console = output.console()
    print_bars(console, [(_label(at, bucket_us), count) for at, count in bars])
    total = sum(count for _, count in bars)
    first, last = bars[0][0], bars[-1][0] + bucket_us
    console.print(
        f"{output.number(total)} messages fall due from {moments.shown_moment(first, digits=0)}"
        f" to {moments.shown_moment(last, digits=0)}"
    )


def _label(at_us: int, bucket_us: int) -> str:
    local = _local(at_us)
    if bucket_us >= DAY_US:
        return local.strftime("%a %Y-%m-%d")
    if bucket_us >= MINUTE_US:
        return local.strftime("%a %m-%d %H:%M")
    return local.strftime("%H:%M:%S.%f")[:-3]
