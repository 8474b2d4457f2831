"""Handlers: functions that were declared to handle a topic's messages.

A handler stays the function that it was, so a test may call it; besides, it can put messages of its
topic, `send.later(value, delay="5m")`, and change those that are pending by their keys.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from fasti.app.codec import Codec, JsonCodec
from fasti.app.signature import payload_of, shape_of
from fasti.client.arguments import Moment
from fasti.client.consumer import checked_group
from fasti.client.durations import Duration, optional_duration_us
from fasti.client.message import Message
from fasti.client.outcomes import Outcome
from fasti.client.producer import OnConflict
from fasti.client.receipts import Receipt
from fasti.client.topics import Backoff
from fasti.errors import InvalidArgument

if TYPE_CHECKING:
    from fasti.app.app import App
    from fasti.app.cron import Timetable

V = TypeVar("V")
P = ParamSpec("P")
R = TypeVar("R")

Kind = Literal["threads", "asyncio", "processes"]
KINDS = ("threads", "asyncio", "processes")


@dataclass(frozen=True, slots=True)
class HandlerSettings:
    """How a handler is run; the arguments of `app.on`."""

    topic: str
    kind: Kind
    concurrency: int = 1
    prefetch: int | None = None
    time_limit_us: int | None = None
    retry: Backoff | None = None
    max_attempts: int | None = None
    create: bool | Mapping[str, Any] = True
    name: str | None = None
    group: str | None = None

    def prefetched(self, concurrency: int) -> int | None:
        """How many messages may be here unfinished, if the handler says it: enough for all workers."""
        return None if self.prefetch is None else max(self.prefetch, concurrency)


@dataclass(frozen=True, slots=True)
class HandlerLocation:
    """Where a worker process finds the handler: it imports the module and looks."""

    module: str
    qualname: str

    def find(self) -> Any:
        """Raises `invalid_argument` if there is no handler."""
        target: Any = sys.modules.get(self.module)
        if target is None:
            import importlib

            target = importlib.import_module(self.module)
        for name in self.qualname.split("."):
            target = getattr(target, name, None)
        # One of an app for asyncio stands on one of ours.
        target = getattr(target, "base", target)
        if not isinstance(target, Handler):
            raise InvalidArgument(
                f"{self.module}.{self.qualname} is not a handler: worker processes import it by this "
                "name, so it must be declared at the top of its module and keep its name",
                field="kind",
            )
        return target


class HandlerOptions(TypedDict, total=False):
    """What `app.on`, `app.cron` and `app.every` take alike: how a handler is run."""

    concurrency: int
    kind: Kind | None
    retry: Backoff | None
    max_attempts: int | None
    time_limit: Duration | None
    prefetch: int | None
    codec: Codec | None
    create: bool | Mapping[str, Any]


class OnOptions(HandlerOptions, total=False):
    """What `app.on` takes besides the topic."""

    name: str | None
    group: str | None


class LaterOptions(TypedDict, total=False):
    """What `later` takes besides the value: as for `Producer.send`."""

    delay: Duration | None
    at: datetime | None
    due: Moment | None
    key: str | None
    headers: Mapping[str, str] | None
    priority: int | None
    subject: str | None
    expires: Duration | datetime | None
    on_conflict: OnConflict


class Handler(Generic[V, P, R]):
    """Made by `app.on`: takes a `V`, and is called as the function that it was. Any thread may call."""

    def __init__(
        self, app: App, function: Callable[P, R], settings: HandlerSettings, codec: Codec
    ) -> None:
        functools.update_wrapper(self, function)
        self.app = app
        self.function = function
        self.settings = settings
        self.codec = codec
        # Of `app.cron` and `app.every`: when it is called.
        self.timetable: Timetable | None = None
        self.shape = shape_of(function)
        _check(self.label, settings, self.shape.is_async)
        if self.shape.takes == "value" and isinstance(codec, JsonCodec):
            codec.type_of(self.shape.annotation)

    @property
    def topic(self) -> str:
        """Whose messages it handles."""
        return self.settings.topic

    @property
    def source(self) -> str:
        """Its topic, or `topic/group` of a log."""
        group = self.settings.group
        return self.topic if group is None else f"{self.topic}/{group}"

    @property
    def label(self) -> str:
        """Its name in logs and statistics."""
        return str(getattr(self.function, "__qualname__", repr(self.function)))

    @property
    def place(self) -> HandlerLocation:
        """Where a worker process finds it."""
        return HandlerLocation(self.function.__module__, self.label)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Handler[V, P, R]:
        return self

    @overload
    def later(
        self: Handler[None, P, R], value: None = None, **options: Unpack[LaterOptions]
    ) -> Receipt: ...
    @overload
    def later(self, value: V, **options: Unpack[LaterOptions]) -> Receipt: ...

    def later(self, value: Any = None, **options: Unpack[LaterOptions]) -> Receipt:
        """Puts a message that this handler will get: after `delay`, `at` (or `due`) a moment, or now.

            send.later(Order(7), delay="5m", key="order-7")

        Options are those of `Producer.send`: `delay`, `at`, `due`, `key`, `headers`, `priority`,
        `subject`, `expires` and `on_conflict`. Returns at once; `receipt.result()` waits until it is durable. Connects if
        the app is not connected. Raises what `connect` and `send` raise, and
        `invalid_argument` if the handler would not get the value as it is: it has another type.
        """
        payload, content_type = self.encode(value)
        producer = self.app.producer(self.topic)
        return producer.send(payload, content_type=content_type, **options)

    def encode(self, value: Any) -> tuple[bytes, str]:
        """The payload from which this handler gets the value, and its content type."""
        return payload_of(self.label, self.shape, self.codec, value)

    def cancel(self, *, key: str, version: int | None = None) -> Outcome:
        """Cancels the pending message with this key; after `ok` it is never handled."""
        outcome: Outcome = self.app.messages(self.topic).cancel(key=key, version=version)
        return outcome

    def move(
        self,
        *,
        key: str,
        delay: Duration | None = None,
        at: datetime | None = None,
        due: Moment | None = None,
        version: int | None = None,
    ) -> Outcome:
        """Gives the pending message with this key another due time."""
        outcome: Outcome = self.app.messages(self.topic).move(
            key=key, delay=delay, at=at, due=due, version=version
        )
        return outcome

    def __repr__(self) -> str:
        return f"<Handler {self.label} of {self.topic!r}>"


# For code that only runs a handler, and needs no types of what it takes and returns.
AnyHandler = Handler[Any, ..., Any]


class Declaration(Protocol):
    """What `app.on` gives, to be called with the function: as a decorator."""

    @overload
    def __call__(self, function: Callable[[Message], R], /) -> Handler[Any, [Message], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[V, P], R], /
    ) -> Handler[V, Concatenate[V, P], R]: ...
    @overload
    def __call__(self, function: Callable[[], R], /) -> Handler[None, [], R]: ...


def settings_of(
    topic: str,
    is_async: bool,
    *,
    kind: Kind | None = None,
    concurrency: int = 1,
    prefetch: int | None = None,
    time_limit: Duration | None = None,
    retry: Backoff | None = None,
    max_attempts: int | None = None,
    create: bool | Mapping[str, Any] = True,
    name: str | None = None,
    group: str | None = None,
) -> HandlerSettings:
    """The arguments of `app.on`, checked. Raises `invalid_argument`."""
    if kind is not None and kind not in KINDS:
        raise InvalidArgument(f"kind must be one of {', '.join(KINDS)}, not {kind!r}", field="kind")
    for field, value in (("concurrency", concurrency), ("prefetch", prefetch)):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and (not whole or value < 1):
            raise InvalidArgument(
                f"{field} must be at least 1, not {value!r}", field=field, limit=1
            )
    if retry is not None and not isinstance(retry, Backoff):
        raise InvalidArgument(f"retry must be a fasti.Backoff, not {retry!r}", field="retry")
    return HandlerSettings(
        topic,
        kind or ("asyncio" if is_async else "threads"),
        concurrency,
        prefetch,
        optional_duration_us(time_limit, "time_limit"),
        retry,
        max_attempts,
        create,
        name,
        checked_group(group) or None,
    )


def _check(label: str, settings: HandlerSettings, is_async: bool) -> None:
    if settings.kind == "asyncio" and not is_async:
        raise InvalidArgument(
            f"{label} is not an async def: kind='asyncio' needs one", field="kind"
        )
    if settings.kind == "threads" and is_async:
        raise InvalidArgument(
            f"{label} is an async def: kind is 'asyncio', or 'processes'", field="kind"
        )
    if settings.kind == "processes" and "<" in label:
        raise InvalidArgument(
            f"{label} can't run in worker processes: they import it, so it must be defined at the top level of "
            "its module",
            field="kind",
        )
