"""Calling a handler: the payload is decoded, the middleware wraps it, its end becomes a verdict.

A middleware is a callable of a message and of what comes next:

    @app.middleware
    def timed(message, call_next):
        with timer(message.topic):
            return call_next(message)

The first that was added is the outermost. Those made by `async def` wrap handlers that are, the
others wrap the others. What they raise counts as raised by the handler.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fasti.app.codec import Codec
from fasti.app.signature import HandlerShape, arguments_of
from fasti.app.verdicts import ACK, Reject, Undecodable, Verdict, judge

Call = Callable[[Any], Any]
Middleware = Callable[[Any, Call], Any]


def call_of(
    function: Callable[..., Any],
    shape: HandlerShape,
    codec: Codec,
    middleware: Sequence[Middleware],
) -> Call:
    """What is called with each message; for an `async def` handler it gives an awaitable."""
    arguments = arguments_of(shape, codec)

    def decode(message: Any) -> tuple[Any, ...]:
        try:
            return arguments(message)
        except Reject:
            raise
        except Exception as error:
            # A codec of the user's own: after any error of it, trying again would not help.
            why = f"the payload can't be decoded: {type(error).__name__}: {error}"
            raise Undecodable(why) from error

    if shape.is_async:

        async def call_async(message: Any) -> Any:
            return await function(*decode(message))

        inner = _wrap(call_async, [wrapper for wrapper in middleware if _is_async(wrapper)])

        async def handle_async(message: Any) -> Verdict:
            return verdict_of(message, await inner(message), codec)

        return handle_async

    def call(message: Any) -> Any:
        return function(*decode(message))

    outer = _wrap(call, [wrapper for wrapper in middleware if not _is_async(wrapper)])
    return lambda message: verdict_of(message, outer(message), codec)


def verdict_of(message: Any, value: Any, codec: Codec) -> Verdict:
    """What a handler's return means: if a caller waits for an answer, that is the answer.

    Nothing (None) is an answer without a payload. One that the codec can't encode fails the handler.
    """
    if message.finished or getattr(message, "reply_to", None) is None:
        return ACK
    if value is None:
        return Verdict("reply")
    payload, content_type = codec.encode(value)
    return Verdict("reply", payload=payload, content_type=content_type)


def _is_async(middleware: Middleware) -> bool:
    return inspect.iscoroutinefunction(middleware) or inspect.iscoroutinefunction(
        getattr(middleware, "__call__", None)  # noqa: B004
    )


def _wrap(call: Call, middleware: Sequence[Middleware]) -> Call:
    for wrapper in reversed(middleware):
        call = _around(wrapper, call)
    return call


def _around(middleware: Middleware, call_next: Call) -> Call:
    return lambda message: middleware(message, call_next)


def attempt(call: Call, message: Any) -> tuple[Verdict, BaseException | None]:
    """Calls a handler: what is to become of the message, and what it raised."""
    try:
        result = call(message)
    except BaseException as error:
        return judge(error), error
    return result if isinstance(result, Verdict) else ACK, None


async def attempt_async(
    call: Callable[[Any], Awaitable[Any]], message: Any
) -> tuple[Verdict, BaseException | None]:
    """The same for a handler that is awaited. Being cancelled is left to the caller."""
    try:
        result = await call(message)
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        return judge(error), error
    return result if isinstance(result, Verdict) else ACK, None
