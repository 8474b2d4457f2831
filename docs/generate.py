"""Writes the pages of the documentation that are made from the code: `make docs`.

A page is made where the code is the truth and prose would go stale: the life cycle's table, the
error tree, the settings, the API (api_pages.py). `tests/unit/test_docs.py` fails when a page and the code disagree.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

import api_pages
from fasti.cli.exits import ERROR_EXITS
from fasti.config import ShardSettings
from fasti.core.lifecycle import TRANSITIONS, draw
from fasti.errors import error_codes
from fasti.model import Limits, Outcome, RetryPolicy, State, TopicSettings
from fasti.settings.declared import BROKER, GUARD, LIMITS, SHARD, Setting
from fasti.settings.page import as_table
from fasti.spark import filters as spark_filters
from fasti.spark import options as spark_options
from fasti.spark import views as spark_views

DOCS = Path(__file__).parent
_NOTE = "<!-- Made from the code by `make docs`; edit docs/generate.py instead. -->\n\n"

# What a setting is for. A test fails when one is missing here, or is no setting any more.
MEANINGS: dict[str, dict[str, str]] = {
    "ShardSettings": {
        **{setting.field: setting.meaning for setting in SHARD},
        "limits": "Bounds on what a caller may send: the table below.",
    },
    "TopicSettings": {
        "kind": "`timeline`, `priority`, `cron`, `log` or `kv`; fixed once the topic is made.",
        "partitions": "Units of order and parallelism, 1 to 4,096; fixed once the topic is made.",
        "lease_us": "How long a lease lasts if nobody renews it.",
        "hold_us": "Renewals by heartbeat end this long after the lease began. At least `lease_us`.",
        "max_attempts": "After this many deliveries that ended in a nack or an expired lease a message is dead; 0: never.",
        "retry": "How long a nacked message waits: the table below.",
        "lookahead_us": "Messages are leased and sent this long before they are due, at most a minute. With more than 0, whoever consumes must hold them until they are due.",
        "outcome_age_us": "How long it is remembered what became of a finished message; afterwards it answers `gone`.",
        "outcome_count": "How many finished messages are remembered per partition at most. Whole chunks of 65,536 are forgotten.",
        "producer_age_us": "A producer that is silent for longer is forgotten and answers `unknown_producer`.",
        "stage_age_us": "A stage that is not published after this time is dropped.",
        "age_step_us": "Priority: a message counts one step more urgent after each such time of waiting; 0: never.",
        "segment_age_us": "Log: rows older than this are dropped, by whole segments; 0: kept.",
        "segment_bytes": "Log: a segment ends at this size, or after an eighth of `segment_age`.",
        "retained_bytes": "Log: the oldest segments go when a partition holds more; 0: no bound.",
        "home": "On several shards: topics with the same word, `partitions` and `width` have equal keys on equal shards, so that transactions and bindings between them work. Fixed when the topic is made.",
        "width": "On several shards: over how many of them the partitions are spread; 0: all. Fixed when the topic is made.",
        "relay": "A topic with bindings keeps nothing itself, it only passes on.",
        "idle_age_us": "The topic is deleted when nobody has used it for so long; 0: never.",
    },
    "RetryPolicy": {
        "base_us": "The delay after the first failed attempt.",
        "factor": "Each further delay is this many times the last; 1 to 1,000, 1 for a fixed delay.",
        "limit_us": "No delay is longer.",
        "jitter": "A delay is shortened by up to this share of it, 0 to 1. By how much follows from the message's id and attempt, not from a random source.",
    },
    "Limits": {setting.field: setting.meaning for setting in LIMITS},
}


def lifecycle_page() -> str:
    """The states of a message and the ways between them."""
    rows = [
        f"| {_state(source)} | {verb.name.lower()} | {_state(target)} |"
        for (source, verb), target in TRANSITIONS.items()
    ]
    return f"""# The life of a message

{_NOTE}The table in `fasti.core.lifecycle` is the only place that says what may happen to a message. A step that it doesn't have raises `illegal_transition` and changes nothing. This drawing is made from it:

```mermaid
{draw()}
```

- **scheduled** covers what readers see as two states: `scheduled` while the due time lies ahead, and `ready` once it has come. Nothing is recorded when a message becomes ready, because it follows from its due time and the clock.
- **leased**: one consumer has it, until a deadline, under a fencing token. Changes by anybody else answer `leased`. With a lookahead a message is leased, and sent, shortly before it is due; its lease runs from the due time.
- **dead**: rejected, failed at its last attempt, or *lapsed*: nobody began it by its moment (`expires`), or it came too late for anybody. What expires while it is leased may still be acked; if it comes back instead, it is dead. It keeps its payload and its reason, and its key is free. It can be redriven or purged.
- **staged**: durable but invisible, until its stage is published.
- **done** and **cancelled** are ends. The row is gone; what became of it is remembered for `outcome_age_us` and up to `outcome_count` messages ([settings](settings.md#topic)).
- *Live* means scheduled, ready or leased: a key names at most one live message.

## Every step

| from | verb | to |
| --- | --- | --- |
{_lines(rows)}
Which command leads to which verb, and what else may be answered, stands in [embedding](embedding.md#outcomes).

## Attempts and versions

A lease counts an attempt. A release takes it back; a nack or an expiry doesn't. So does a lease that ends at a consumer from which nothing came since it got the message (`unopened`): nobody is known to have opened it. A connection that breaks, as when a process dies, is no such silence: the attempt counts. At `max_attempts` the next nack or expiry makes the message dead (`exhaust`), otherwise it is scheduled again: after a nack at the retry delay, after an expiry at the due time that it had. Redrive and replace start again from 0.

A version starts at 1 and grows by 1 with everything that changes a message or its due time: update, move, replace, redrive, release and nack. A lease, its renewal and its expiry don't change it.
"""


def _state(state: State) -> str:
    return "(none)" if state is State.NONE else state.name.lower()


def errors_page() -> str:
    """Every error, its code and its exit code."""
    rows = []
    for code, kind in sorted(error_codes().items(), key=lambda item: ERROR_EXITS[item[0]]):
        retry = "yes" if kind.retryable else "no"
        meaning = inspect.cleandoc(kind.__doc__ or "").splitlines()[0]
        rows.append(f"| `{code}` | `{kind.__name__}` | {retry} | {ERROR_EXITS[code]} | {meaning} |")
    outcomes = [f"| `{outcome.word}` | {OUTCOMES[outcome]} |" for outcome in Outcome]
    return f"""# Errors and outcomes

{_NOTE}A command that can't be carried out as a whole is refused with an *error*, and nothing has changed (but for `unknown`, `call_forgotten`, `storage_failed` and some of `internal`, where that can't be told). A command that was carried out answers an *outcome* for each of its rows.

## Errors

One tree, in `fasti.errors`. The code is stable: it is never renamed or given another meaning. *Retry* says whether the same call may succeed later without anybody changing it; `retry_after_us` then says when, where it is known. `details` holds what a program may want to know, such as the field and the limit.

| code | class | retry | exit | meaning |
| --- | --- | --- | --- | --- |
{_lines(rows)}
*Exit* is the exit code of the `fasti` command, which prints `error CODE: MESSAGE` on stderr. Besides, 0 means that all is well, 1 that the command found something wrong (a damaged file, a broken promise), and 2 that the command line was not understood.

## Outcomes

| outcome | meaning |
| --- | --- |
{_lines(outcomes)}"""


OUTCOMES: dict[Outcome, str] = {
    Outcome.OK: "Done, and durable.",
    Outcome.CONFLICT: "The version is another than the one named, or a live message has the key; or a redrive named a message that is not dead.",
    Outcome.LEASED: "A consumer has the message; the reply says who, and until when. `publish` has messages that were published a moment ago and are about to land.",
    Outcome.DONE: "It was acknowledged; the reply says when.",
    Outcome.CANCELLED: "It was cancelled; the reply says when.",
    Outcome.DEAD: "It is dead, or was when it was purged.",
    Outcome.NOT_FOUND: "There never was such an id, or no live or remembered message has the key.",
    Outcome.NOT_OWNER: "It belongs to another owner.",
    Outcome.STALE_LEASE: "The token is not that of the message's lease: it expired, or went to another.",
    Outcome.DUPLICATE: "The producer's batch was sent before and its receipt is forgotten; or a live message has the key and was kept; or the message was named before in the same batch.",
    Outcome.GONE: "It is finished, and what became of it is forgotten.",
    Outcome.ABORTED: "Nothing was wrong with this row, but its transaction did not happen.",
}


def settings_page() -> str:
    """Every setting, its default and its meaning."""
    return f"""# Settings

{_NOTE}The settings of a broker are given to `fasti serve` as flags, as environment variables or in a TOML file (`--config FILE`, or `FASTI_CONFIG`); a flag beats the environment, which beats the file, which beats the default. Unknown keys are refused, and everything that is wrong is reported at once. `fasti serve --print-config` shows the settings in force as such a file, with where each came from; `--check` only looks whether they are good.

Sizes are written as `64MiB` (B, KiB, MiB, GiB, TiB, and KB to TB for powers of ten), lengths of time as `100ms` (us, ms, s, m, h, d), addresses as `HOST:PORT`. Keys with a dot stand in a table: `limits.payload_max` is `payload_max` below `[limits]`.

None of these are stored but `shards`: each start may use others. A topic's settings are stored with the topic.

## Broker

{as_table(BROKER)}
## Shard

How a broker keeps its data. In a program they are the fields of `fasti.config.ShardSettings`, which is given to `Shard` when a directory is opened; there, as in all names here, units stand last (`_us` is microseconds), and a value that can't be raises `invalid_argument`, which names the field and the limit.

{as_table(SHARD)}
| key | field of `ShardSettings` | default |
| --- | --- | --- |
{_fields(SHARD, ShardSettings)}| `limits` | `limits` | see [limits](#limits) |

## Topic

`fasti.model.TopicSettings`, stored with the topic. `CreateTopic` with the same settings again is fine, with others it answers `topic_mismatch` and names the differences; `ChangeTopic` changes all but `kind` and `partitions`.

{_settings(TopicSettings)}
### Retry

`fasti.model.RetryPolicy`: attempt *n* that failed is due again after `base · factor^(n − 1)`, at most `limit`.

{_settings(RetryPolicy)}
## Guard

What [connections](operating.md#strangers) to the port for clients may bring, on Linux.

{as_table(GUARD)}
## Limits

A command beyond one is refused as a whole. In a program they are the fields of `fasti.model.Limits`.

{as_table(LIMITS)}
| key | field of `Limits` | default |
| --- | --- | --- |
{_fields(LIMITS, Limits)}"""


def _fields(settings: Sequence[Setting], kind: type[Any]) -> str:
    """What a setting is called in a program, and its default there."""
    defaults = {each.name: each.default for each in fields(kind)}
    return "".join(
        f"| `{setting.key}` | `{setting.field}` | {_shown(setting.field, defaults[setting.field])} |\n"
        for setting in settings
    )


def _settings(kind: type[Any]) -> str:
    rows = "".join(
        f"| `{each.name}` | {_default(each)} | {MEANINGS[kind.__name__][each.name]} |\n"
        for each in fields(kind)
    )
    return f"| name | default | meaning |\n| --- | --- | --- |\n{rows}"


def _default(each: Field[Any]) -> str:
    if each.default_factory is not MISSING:
        return "see below"
    return _shown(each.name, each.default)


def _shown(name: str, value: Any) -> str:
    """A default as a person would say it."""
    if isinstance(value, Enum):
        return f"`{value.value}`"
    if name.endswith("_us") or "_us_" in name:
        for unit, size in (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000)):
            if value and value % size == 0:
                return f"{value:,} ({value // size} {unit})"
        if value and value % 1_000_000:
            return f"{value:,} ({value / 1000:g} ms)"
        return f"{value:,} ({value // 1_000_000} s)" if value else "0"
    if "bytes" in name:
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value % size == 0:
                return f"{value:,} ({value // size} {unit})"
    return f"{value:,}" if isinstance(value, int) else f"`{value}`"


def _lines(rows: list[str]) -> str:
    return "".join(f"{row}\n" for row in rows)


def spark_page() -> str:
    """The options of `format("fasti")`, and the columns of its views."""
    reading = [_option(each) for each in spark_options.OPTIONS if each.views]
    writing = [_option(each, views=False) for each in spark_options.OPTIONS if each.writing]
    views = "\n".join(_view(name) for name in spark_views.VIEWS)
    return f"""# Options and columns of `format("fasti")`

{_NOTE}How they are used stands in the guides to [reading](../guides/spark.md), [writing](../guides/spark-writing.md) and [streaming](../guides/spark-streaming.md). Names of options are read in any case; one that isn't here is refused. Lengths of time are written as `30s` or `10m`, moments as ISO 8601 with a zone, or as milliseconds since 1970.

## Reading

| option | views | default | meaning |
| --- | --- | --- | --- |
{_lines(reading)}
## Writing

| option | default | meaning |
| --- | --- | --- |
{_lines(writing)}
## Columns

Moments are `timestamp`, in microseconds. Every column may be null as far as Spark is concerned.

{views}"""


def _option(each: spark_options.Option, views: bool = True) -> str:
    default = each.shown or ("" if each.default is None else str(each.default))
    if isinstance(each.default, bool):
        default = default.lower()
    shown = f"`{default}`" if default else ""
    where = "all" if each.views == spark_options.VIEWS else ", ".join(each.views)
    cells = [f"`{each.name}`", *([where] if views else []), shown, each.meaning]
    return f"| {' | '.join(cells)} |"


def _view(name: str) -> str:
    filterable = spark_filters.FILTERABLE[name]
    rows = [
        f"| `{each.name}` | `{_spark_type(each)}` | {'yes' if each.name in filterable else ''} | "
        f"{each.meaning} |"
        for each in spark_views.VIEWS[name]
    ]
    return f"""### `{name}`

| column | type | pushed | what |
| --- | --- | --- | --- |
{_lines(rows)}"""


def _spark_type(column: spark_views.Column) -> str:
    schema = from_arrow_schema(pa.schema([pa.field(column.name, column.kind)]))
    return schema.fields[0].dataType.simpleString()


def pages() -> Iterator[tuple[Path, str]]:
    """Each page that is made from the code, and what it should hold."""
    assert all(is_dataclass(kind) for kind in (ShardSettings, TopicSettings, Limits))
    yield DOCS / "lifecycle.md", lifecycle_page()
    yield DOCS / "errors.md", errors_page()
    yield DOCS / "settings.md", settings_page()
    yield DOCS / "reference" / "spark.md", spark_page()
    yield from api_pages.pages()


def main() -> None:
    """Writes them all."""
    for path, text in pages():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
