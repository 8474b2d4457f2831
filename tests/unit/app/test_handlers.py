"""Declaring handlers: what they take, what is refused, and that they stay functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import fasti
from fasti.app.calls import attempt, attempt_async, call_of
from fasti.app.codec import JSON
from fasti.app.handler import Handler, HandlerLocation
from fasti.app.verdicts import ACK, Verdict
from fasti.errors import AlreadyExists, FastiError, InvalidArgument
from tests.unit.app.fakes import FakeMessage


@dataclass
class Order:
    id: int


class Opaque:
    pass


def declared(function: Any, **settings: Any) -> Handler[Any, Any, Any]:
    return fasti.App().on("emails", **settings)(function)


def called(function: Any, message: FakeMessage, **settings: Any) -> Any:
    handler = declared(function, **settings)
    call = call_of(handler.function, handler.shape, handler.codec, handler.app.middlewares)
    verdict, error = attempt(call, message)
    if error is not None and verdict.op != "reject":
        raise error
    return verdict


def test_what_a_handler_takes_is_its_annotation() -> None:
    got: list[Any] = []

    def takes_bytes(payload: bytes) -> None:
        got.append(payload)

    def takes_message(message: fasti.Message) -> None:
        got.append(message)

    def takes_order(order: Order) -> None:
        got.append(order)

    def takes_anything(value) -> None:  # type: ignore[no-untyped-def]
        got.append(value)

    def takes_both(order: Order, message: fasti.Message) -> None:
        got.extend([order, message])

    def takes_text(text: str, mood: str = "good") -> None:
        got.append((text, mood))

    def takes_nothing() -> None:
        got.append("called")

    message = FakeMessage(b'{"id": 7}', JSON)
    for function in (
        takes_bytes,
        takes_message,
        takes_order,
        takes_anything,
        takes_both,
        takes_nothing,
    ):
        assert called(function, message) == ACK
    called(takes_text, FakeMessage(b"hello"))
    expected = [b'{"id": 7}', message, Order(7), {"id": 7}, Order(7), message, "called"]
    assert got == [*expected, ("hello", "good")]


def test_a_payload_that_cannot_be_decoded_is_rejected_with_a_reason() -> None:
    def handle(order: Order) -> None:
        raise AssertionError("it must not be called")

    verdict = called(handle, FakeMessage(b'{"id": "x"}', JSON))
    reason = "the payload does not fit: id: expected a valid integer, not 'x'"
    assert verdict == Verdict("reject", reason)


def test_what_a_codec_of_ones_own_raises_rejects_too() -> None:
    class Picky:
        def encode(self, value: Any) -> tuple[bytes, str]:
            return repr(value).encode(), "text/x-python"

        def decode(self, payload: bytes, content_type: str | None, annotation: Any) -> Any:
            raise KeyError("nope")

    def handle(value: Opaque) -> None: ...

    verdict = called(handle, FakeMessage(b"x"), codec=Picky())
    assert verdict.op == "reject"
    assert "KeyError: 'nope'" in verdict.reason


def test_a_handler_stays_a_function() -> None:
    def double(value: int) -> int:
        """Twice."""
        return 2 * value

    handler = declared(double)
    assert handler(21) == 42
    assert (handler.__name__, handler.__doc__, handler.topic) == ("double", "Twice.", "emails")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"concurrency": True}, "concurrency must be at least 1"),
        ({"prefetch": 0}, "prefetch must be at least 1"),
        ({"kind": "fibres"}, "kind must be one of threads, asyncio, processes"),
        ({"kind": "asyncio"}, "is not an async def"),
        ({"kind": "processes"}, "must be defined at the top"),
        ({"time_limit": "soon"}, "time_limit 'soon'"),
        ({"retry": "1s"}, "retry must be a fasti.Backoff"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], why: str) -> None:
    def handle(payload: bytes) -> None: ...

    with pytest.raises(InvalidArgument, match=why):
        declared(handle, **settings)


def test_parameters_that_nobody_would_fill_are_refused() -> None:
    def two(order: Order, other: int) -> None: ...

    def named(order: Order, *, other: int) -> None: ...

    def unknown(value: Opaque) -> None: ...

    def keyed(value: dict[tuple[int, int], str]) -> None: ...

    for function, why in (
        (two, "'other'"),
        (named, "'other'"),
        (unknown, "Opaque can't be made"),
        (keyed, "can't come back from JSON: keys of JSON objects are text"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            declared(function)


def test_an_async_handler_is_for_the_loop_or_for_processes() -> None:
    async def handle(payload: bytes) -> None: ...

    assert declared(handle).settings.kind == "asyncio"
    with pytest.raises(InvalidArgument, match="is an async def"):
        declared(handle, kind="threads")


def test_a_topic_has_one_handler() -> None:
    app = fasti.App()

    @app.on("emails")
    def first(payload: bytes) -> None: ...

    with pytest.raises(AlreadyExists, match="first"):

        @app.on("emails")
        def second(payload: bytes) -> None: ...


def test_prefetch_adapts_unless_it_is_given() -> None:
    def handle(payload: bytes) -> None: ...

    assert declared(handle).settings.prefetched(8) is None
    assert declared(handle, prefetch=100).settings.prefetched(8) == 100
    assert declared(handle, prefetch=2).settings.prefetched(8) == 8


def test_middleware_wraps_from_the_outside_in() -> None:
    app = fasti.App()
    seen: list[str] = []

    @app.middleware
    def outer(message: Any, call_next: Any) -> Any:
        seen.append("outer")
        try:
            return call_next(message)
        except ValueError as error:
            raise fasti.Retry("1s") from error

    @app.middleware
    def inner(message: Any, call_next: Any) -> Any:
        seen.append(f"inner {message.id}")
        return call_next(message)

    @app.middleware
    async def other(message: Any, call_next: Any) -> Any:
        raise AssertionError("this one is for handlers made by async def")

    @app.on("emails")
    def handle(payload: bytes) -> None:
        seen.append("handler")
        raise ValueError

    call = call_of(handle.function, handle.shape, handle.codec, app.middlewares)
    assert attempt(call, FakeMessage(id=7))[0] == Verdict(
        "nack", "again later", 1_000_000, retry=True
    )
    assert seen == ["outer", "inner 7", "handler"]


def test_async_middleware_wraps_async_handlers() -> None:
    import asyncio

    app = fasti.App()
    seen: list[str] = []

    @app.middleware
    async def outer(message: Any, call_next: Any) -> Any:
        seen.append("outer")
        await call_next(message)

    @app.middleware
    def other(message: Any, call_next: Any) -> Any:
        raise AssertionError("this one is for the others")

    @app.on("emails")
    async def handle(payload: bytes) -> None:
        seen.append("handler")

    call = call_of(handle.function, handle.shape, handle.codec, app.middlewares)
    assert asyncio.run(attempt_async(call, FakeMessage()))[0] == ACK
    assert seen == ["outer", "handler"]


def test_a_handler_that_a_worker_process_could_not_find_is_named() -> None:
    with pytest.raises(InvalidArgument, match="is not a handler"):
        HandlerLocation(__name__, "declared").find()


def test_nothing_is_connected_before_it_is_needed() -> None:
    # Nobody listens at port 1: only what needs a broker notices.
    app = fasti.App("fasti://127.0.0.1:1", timeout="1s")

    @app.on("emails")
    def handle(payload: bytes) -> None: ...

    assert app.stats() == {}
    app.stop()
    with pytest.raises(FastiError):
        app.start()
    assert not app.running


def test_an_app_without_handlers_is_not_started() -> None:
    with pytest.raises(InvalidArgument, match="no handlers"):
        fasti.App("fasti://127.0.0.1:1").start()


def test_workers_need_an_app_that_can_be_imported() -> None:
    with pytest.raises(InvalidArgument, match="at the top level of a module"):
        fasti.App().run(workers=2)


def test_later_refuses_a_value_of_another_type_and_names_the_handler() -> None:
    # Nobody listens at this address: nothing is connected or sent.
    app = fasti.App("fasti://127.0.0.1:1")

    @app.on("orders")
    def ship(order: Order) -> None: ...

    @app.on("blobs")
    def store(payload: bytes) -> None: ...

    with pytest.raises(InvalidArgument, match=r"ship.later: id: expected a valid integer, not '7'"):
        ship.later(Order("7"))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"ship.later: expected an object, not None"):
        ship.later()  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument, match=r"store.later: expected bytes, not 'text'") as caught:
        store.later("text")  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.field) == ("invalid_argument", "value")
