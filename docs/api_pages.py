"""The API reference, made from signatures and docstrings: docs/generate.py writes its pages.

A page has a few classes and functions, and of each class what a user calls. A docstring's indented
paragraphs, and those that are Python, become code.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from fasti import errors

API = Path(__file__).parent / "api"
_NOTE = "<!-- Made from the code by `make docs`; edit the docstrings instead. -->\n\n"
_LINE = 88


# The root first, the rest by name.
_ERRORS = sorted(
    (kind.__name__ for kind in errors.error_codes().values()),
    key=lambda name: (name != "FastiError", name),
)


@dataclass(frozen=True)
class Page:
    """One page: its file's name, title and opening, and where its names are from."""

    name: str
    title: str
    opening: str
    names: tuple[str, ...]


PAGES = (
    Page(
        "client",
        "Client",
        "One connection to a broker, or one broker inside this process. Guides: [quick start](../guides/quick-start.md), [embedding](../embedding.md).",
        (
            "fasti.connect",
            "fasti.Client",
            "fasti.Answer",
            "fasti.Topic",
            "fasti.ClockInfo",
            "fasti.ConsumerInfo",
            "fasti.Backoff",
        ),
    ),
    Page(
        "producer",
        "Producer",
        "Putting messages at their moments. Guide: [producing](../guides/producing.md).",
        ("fasti.Producer", "fasti.Receipt", "fasti.Failure", "fasti.client.receipts.PendingBatch"),
    ),
    Page(
        "consumer",
        "Consumer and messages",
        "Getting messages at their moments, and finishing them. Guide: [consuming](../guides/consuming.md).",
        ("fasti.Consumer", "fasti.Message", "fasti.Batch"),
    ),
    Page(
        "logs",
        "Logs and groups",
        "Reading logs, and the groups that consume them. Guide: [logs and groups](../guides/logs.md).",
        (
            "fasti.Reader",
            "fasti.LogMessage",
            "fasti.Log",
            "fasti.client.log.LogPartition",
            "fasti.Groups",
            "fasti.client.groups.Group",
            "fasti.client.groups.GroupPartition",
        ),
    ),
    Page(
        "changes",
        "The change feed",
        "Everything that happened, in order. Guide: [the change feed](../guides/changes.md).",
        ("fasti.Changes", "fasti.Position", "fasti.client.changes.FeedBounds"),
    ),
    Page(
        "messages",
        "Pending messages and outcomes",
        "Reading and changing what a topic holds. Guide: [changing what is pending](../guides/changing.md).",
        (
            "fasti.Messages",
            "fasti.StaleMessages",
            "fasti.Stale",
            "fasti.Outcome",
            "fasti.Outcomes",
            "fasti.BulkOutcomes",
            "fasti.DeadOutcomes",
        ),
    ),
    Page(
        "transaction",
        "Transactions",
        "Several changes, whole or not at all. Guide: [transactions](../guides/transactions.md).",
        ("fasti.Transaction",),
    ),
    Page(
        "kv",
        "Key-value topics",
        "The latest value of each key. Guide: [key-value topics](../guides/key-value.md).",
        (
            "fasti.KeyValues",
            "fasti.StaleKeyValues",
            "fasti.client.kv.Entry",
            "fasti.client.watch.Watch",
            "fasti.client.watch.Change",
        ),
    ),
    Page(
        "schedules",
        "Schedules",
        "What cron topics emit, and when. Guide: [schedules](../guides/schedules.md).",
        (
            "fasti.Schedules",
            "fasti.client.schedules.Schedule",
            "fasti.client.schedules.Occurrence",
        ),
    ),
    Page(
        "bindings",
        "Bindings",
        "What one topic gets goes to others too. Guide: [routing](../guides/routing.md).",
        ("fasti.Bindings", "fasti.client.bindings.Binding"),
    ),
    Page(
        "sinks",
        "Sinks",
        "Batches of rows that happen once. Guide: [producing](../guides/producing.md#batches-that-happen-once); [writing from Spark](../guides/spark-writing.md) stands on them.",
        (
            "fasti.client.sinks.Sink",
            "fasti.client.sinks.StageWriter",
            "fasti.client.sinks.Staged",
            "fasti.client.sinks.Published",
            "fasti.client.sinks.SinkState",
        ),
    ),
    Page(
        "app",
        "Apps",
        "Handlers of topics, and running them. Guide: [apps](../guides/apps.md).",
        (
            "fasti.App",
            "fasti.app.handler.Handler",
            "fasti.Retry",
            "fasti.Reject",
            "fasti.app.codec.Codec",
            "fasti.app.codec.JsonCodec",
            "fasti.app.stats.HandlerStats",
        ),
    ),
    Page(
        "aio",
        "Asyncio",
        "The names of the synchronous SDK, awaited. Guide: [asyncio](../guides/asyncio.md).",
        (
            "fasti.aio.connect",
            "fasti.aio.Client",
            "fasti.aio.Producer",
            "fasti.aio.Receipt",
            "fasti.aio.PendingBatch",
            "fasti.aio.Consumer",
            "fasti.aio.Reader",
            "fasti.aio.Changes",
            "fasti.aio.Log",
            "fasti.aio.Groups",
            "fasti.aio.KeyValues",
            "fasti.aio.StaleKeyValues",
            "fasti.aio.watch.Watch",
            "fasti.aio.Schedules",
            "fasti.aio.sinks.Sink",
            "fasti.aio.sinks.StageWriter",
            "fasti.aio.Bindings",
            "fasti.aio.Message",
            "fasti.aio.Batch",
            "fasti.aio.Messages",
            "fasti.aio.StaleMessages",
            "fasti.aio.Transaction",
            "fasti.aio.App",
            "fasti.app.aio.Handler",
        ),
    ),
    Page(
        "spark",
        "Spark",
        "Sessions, workers and changes of DataFrames; needs the extra `fasti[spark]`. Guides: [writing from Spark](../guides/spark-writing.md), [streams and workers in Spark](../guides/spark-streaming.md).",
        (
            "fasti.spark.session",
            "fasti.spark.register",
            "fasti.spark.apply",
            "fasti.spark.behind",
            "fasti.spark.consume",
            "fasti.spark.Worker",
        ),
    ),
    Page(
        "pipeline",
        "Pipelines and the lake",
        "Pipelines of one's own, and the tables that Fasti's writes; needs the extra `fasti[spark]`. Guides: [pipelines of your own](../guides/user-pipelines.md), [the data pipeline](../guides/pipeline.md).",
        (
            "fasti.pipeline.Pipeline",
            "fasti.pipeline.changes",
            "fasti.pipeline.log",
            "fasti.pipeline.messages",
            "fasti.pipeline.kv",
            "fasti.pipeline.table",
            "fasti.pipeline.topic",
            "fasti.pipeline.Source",
            "fasti.pipeline.Sink",
            "fasti.pipeline.StepRun",
            "fasti.pipeline.stages.pipeline",
            "fasti.pipeline.lake.Lake",
            "fasti.pipeline.tables.Table",
        ),
    ),
    Page(
        "testing",
        "Testing",
        "A broker for tests, in virtual time or in a process of its own. pytest has the fixtures `fasti_broker` (a `VirtualBroker`) and `fasti_client` (a `Client` of it). Guide: [testing](../guides/testing.md).",
        (
            "fasti.testing.virtual.VirtualBroker",
            "fasti.testing.idle.Run",
            "fasti.broker.launch.BrokerProcess",
        ),
    ),
    Page(
        "errors",
        "Errors",
        "All in `fasti.errors`. What each means, its code and its exit code: [errors and outcomes](../errors.md).",
        tuple(f"fasti.errors.{name}" for name in _ERRORS),
    ),
)

# Called by other parts of the SDK, not by its users.
INTERNAL = {
    "fasti.Client": ("look_after",),
    "fasti.Message": (
        "segment",
        "place",
        "reason_bytes_max",
        "same_as",
        "finished_elsewhere",
        "known_token",
    ),
    "fasti.Outcomes": ("of_reply", "joined"),
    "fasti.Topic": ("of_reply",),
    "fasti.ClockInfo": ("of_reply",),
    "fasti.ConsumerInfo": ("of_reply",),
    "fasti.Reader": ("begin", "take_message", "take_table", "more"),
    "fasti.client.log.LogPartition": ("of_reply",),
    "fasti.client.groups.Group": ("of_reply",),
    "fasti.client.schedules.Schedule": ("of_reply",),
    "fasti.client.schedules.Occurrence": ("of_reply",),
    "fasti.Backoff": ("policy",),
    "fasti.Producer": ("outbox", "cut"),
    "fasti.Consumer": ("session",),
    "fasti.App": (
        "reach_for_others",
        "use",
        "in_worker_process",
        "reference",
        "finish",
        "bound",
        "connected",
        "ensure",
        "has_ensured",
        "last_run",
    ),
    "fasti.aio.Client": ("detach", "synchronous", "loop"),
    "fasti.app.handler.Handler": ("place", "label", "source", "encode"),
    "fasti.app.codec.JsonCodec": ("encode_for", "type_of"),
    "fasti.aio.Consumer": ("session", "close_session"),
    "fasti.aio.Message": (
        "segment",
        "place",
        "reason_bytes_max",
        "same_as",
        "finished_elsewhere",
        "known_token",
    ),
    "fasti.aio.Producer": ("settle", "busy"),
    "fasti.spark.Worker": ("start", "all_due"),
    "fasti.pipeline.Pipeline": ("place",),
    "fasti.pipeline.lake.Lake": ("messages", "tidy", "clean", "lock"),
    "fasti.pipeline.tables.Table": (
        "position",
        "files",
        "staging",
        "adopt",
        "write_staged",
        "replace",
        "clean",
    ),
    "fasti.testing.virtual.VirtualBroker": ("transport", "flush", "open_work", "next_due_us"),
}
# Classes that users make themselves; the others are given to them by a call.
MADE_BY_USERS = {
    "fasti.App",
    "fasti.Backoff",
    "fasti.Retry",
    "fasti.app.codec.JsonCodec",
    "fasti.pipeline.Pipeline",
    "fasti.pipeline.lake.Lake",
    "fasti.pipeline.tables.Table",
    "fasti.testing.virtual.VirtualBroker",
    "fasti.broker.launch.BrokerProcess",
}


def pages() -> Iterator[tuple[Path, str]]:
    """Every page and what it should hold."""
    yield API / "README.md", _index()
    for page in PAGES:
        parts = [_entry(name) for name in page.names]
        text = f"# {page.title}\n\n{_NOTE}{page.opening}\n\n" + "\n".join(parts)
        yield API / f"{page.name}.md", text.rstrip() + "\n"


def _index() -> str:
    rows = []
    for page in PAGES:
        named = page.names if page.name != "errors" else page.names[:1]
        links = [f"[`{_short(name)}`]({page.name}.md#{_anchor(name)})" for name in named]
        more = "" if len(named) == len(page.names) else " and all below it"
        rows.append(f"| [{page.title}]({page.name}.md) | {', '.join(links)}{more} |\n")
    return f"""# API reference

{_NOTE}Every public name of the SDK. Lengths of time (`Duration`) are `"5m"`, `"1h30m"`, `"100ms"`, a `timedelta`, or a number of seconds; moments are aware datetimes, or, where a name is `due` or ends in `_us`, microseconds since the Unix epoch. What is raised is named by its [code](../errors.md): `timed_out` is `fasti.errors.TimedOut`.

| page | names |
| --- | --- |
{"".join(rows)}"""


def _find(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def _short(name: str) -> str:
    """As its user writes it, without where it lies inside."""
    module, _, attribute = name.rpartition(".")
    return (
        f"{module}.{attribute}" if module in ("fasti", "fasti.aio", "fasti.errors") else attribute
    )


def _anchor(name: str) -> str:
    return _short(name).lower().replace(".", "")


def _entry(name: str) -> str:
    found = _find(name)
    head = f"## {_short(name)}\n\n"
    module = name.rpartition(".")[0]
    if module not in ("fasti", "fasti.aio", "fasti.errors"):
        head += f"`from {module} import {found.__name__}`\n\n"
    if inspect.isclass(found):
        return head + _class(name, found)
    return head + _signed(found, found.__name__) + _prose(found)


def _class(name: str, kind: type[Any]) -> str:
    text = ""
    if issubclass(kind, errors.FastiError):
        base = kind.__base__
        retry = (
            "may succeed when it is tried again" if kind.retryable else "not to be retried as it is"
        )
        text += f"`{kind.code}`; {retry}. A kind of `{base.__name__}`.\n\n" if base else ""
    elif name in MADE_BY_USERS:
        text += _signed(kind, kind.__name__)
    text += _prose(kind)
    properties, methods = [], []
    hidden = INTERNAL.get(name, ())
    for member, value in _members(kind):
        if member in hidden:
            continue
        if isinstance(value, (property, cached_property)):
            properties.append(f"| `{member}` | {_first_line(value)} |\n")
        else:
            methods.append((member, value))
    if is_dataclass(kind):
        fields = [f"`{field}`" for field in inspect.signature(kind).parameters]
        text += f"Fields: {', '.join(fields)}.\n\n"
    if properties:
        text += "| property | |\n| --- | --- |\n" + "".join(properties) + "\n"
    for member, value in methods:
        text += f"### {kind.__name__}.{member}\n\n{_signed(value, member)}{_prose(value)}"
    return text


def _members(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """What the class and its own bases define, in the order of the code."""
    seen = set()
    for base in [kind, *kind.__mro__[1:]]:
        if not base.__module__.startswith("fasti") or base is errors.FastiError is not kind:
            continue
        for member, value in vars(base).items():
            documented = inspect.isfunction(value) or isinstance(
                value, (property, cached_property, classmethod, staticmethod)
            )
            if member.startswith("_") or member in seen or not documented:
                continue
            seen.add(member)
            yield member, value


def _first_line(value: Any) -> str:
    doc = inspect.getdoc(value) or ""
    return " ".join(doc.split("\n\n")[0].split()).replace("|", "\\|")


def _signed(value: Any, name: str) -> str:
    function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    if inspect.isclass(function):
        signature = signature.replace(return_annotation=inspect.Signature.empty)
    waits = "async " if inspect.iscoroutinefunction(function) else ""
    shown = f"{waits}{name}{_written(signature.replace(parameters=parameters))}"
    return f"```python\n{_wrapped(shown)}\n```\n\n"


def _written(signature: inspect.Signature) -> str:
    """Without the quotes of annotations that are read late, and without addresses of memory."""
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(signature))
    text = re.sub(r"<function .*? at 0x[0-9a-f]+>", "...", text)
    return re.sub(r"fasti\.(?:client|app|aio)\.\w+\.", "", text)


def _wrapped(shown: str) -> str:
    if len(shown) <= _LINE:
        return shown
    name, _, rest = shown.partition("(")
    inside, _, after = rest.rpartition(")")
    lines = [f"    {part}," for part in _split(inside)]
    return "\n".join([f"{name}(", *lines, f"){after}"])


def _split(inside: str) -> list[str]:
    """Parameters, split at commas that stand outside of brackets and quotes."""
    parts, depth, begin, quote = [], 0, 0, ""
    for place, character in enumerate(inside):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and not depth:
            parts.append(inside[begin:place].strip())
            begin = place + 1
    return [*parts, inside[begin:].strip()]


def _prose(value: Any) -> str:
    """A docstring as Markdown."""
    doc = inspect.getdoc(value.fget if isinstance(value, property) else value) or ""
    shown: list[str] = []
    for paragraph in re.split(r"\n\s*\n", doc):
        if paragraph.startswith("    ") or _is_python(paragraph):
            code = textwrap.dedent(paragraph)
            shown.append(f"```python\n{code}\n```")
        else:
            shown.append(" ".join(paragraph.split()))
    return "\n\n".join(shown) + "\n\n" if doc else ""


def _is_python(paragraph: str) -> bool:
    if "(" not in paragraph:
        return False
    try:
        ast.parse(paragraph)
    except SyntaxError:
        return False
    return True
