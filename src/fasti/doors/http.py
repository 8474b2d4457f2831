"""The HTTP application: health, readiness and metrics of a broker that it reaches over Flight.

It runs in a process of its own (http_process.py) and holds nothing: every answer is asked of the
broker (whole_broker.py), so what it says is true at that moment. Each concern is a router of its own; the full door
and its page are further routers. Refusals are problem details (RFC 9457) with our error code.

Handlers are plain functions: FastAPI runs them in worker threads, where a Flight call may block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from fasti.doors.whole_broker import AskedBroker
from fasti.errors import FastiError, Overloaded, Unauthenticated, Unavailable
from fasti.model import SECOND_US
from fasti.protocol.tokens import check_token

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PROBLEM_TYPE = "application/problem+json"
_BEARER = "bearer "
# Pages of metrics that are on their way at a time.
_PAGES_MAX = 4
_STATUS = {"unauthenticated": 401, "permission_denied": 403, "not_found": 404} | {
    "invalid_argument": 400,
    "overloaded": 429,
    "unavailable": 503,
    "timed_out": 503,
    "closed": 503,
}


def build(broker: AskedBroker) -> FastAPI:
    """The application around one broker."""
    app = FastAPI(title="Fasti", description="A broker's health and metrics.", redoc_url=None)
    app.include_router(_health(broker))
    app.include_router(_metrics(broker))
    paths = sorted(app.openapi()["paths"])
    app.include_router(_root(paths))
    app.add_exception_handler(FastiError, _error_response)
    app.add_exception_handler(HTTPException, _error_response)
    return app


def _root(paths: list[str]) -> APIRouter:
    router = APIRouter()

    @router.get("/", summary="What there is")
    def root() -> dict[str, Any]:
        return {"server": "fasti", "paths": [*paths, "/docs", "/openapi.json"]}

    return router


def _health(broker: AskedBroker) -> APIRouter:
    router = APIRouter(tags=["health"])

    def answer(good: Callable[[dict[str, Any]], bool]) -> Response:
        health = broker.health()
        if good(health):
            return JSONResponse(health)
        raise Unavailable(_why(health), details=health)

    @router.get(
        "/healthz", summary="The broker is alive: no shard of it has failed, its threads work"
    )
    def healthz() -> Response:
        return answer(broker.is_alive)

    @router.get("/readyz", summary="Work gets done")
    def readyz() -> Response:
        return answer(lambda health: bool(health["ready"]))

    return router


_REASONS = {
    "storage_full": "refuses what is produced: its disk is full",
    "recovering": "opens its directory again after a failure",
    "no_quorum": "waits for the servers that keep its cluster's journals: too few of them answer",
    "not_answering": "takes too long for a step that does nothing",
}


def _why(health: dict[str, Any]) -> str:
    """A sentence for a person who opens the page."""
    each = [process for process in health.get("processes", ()) if not process["ready"]]
    why = "; ".join(_state(f"process {p['process']} ({_shards(p['shards'])})", p) for p in each)
    why = why or _state("the broker", health)
    for thread in health.get("threads", ()):
        seconds = f"{thread['seconds']:g} s"
        since = f"{seconds} ago" if thread["state"] == "died" else f"for {seconds}"
        why += f"; the thread {thread['name']} {thread['state']} {since}"
    return why


def _state(who: str, health: dict[str, Any]) -> str:
    shard = f" (shard {health['shard']})" if "shard" in health else ""
    reason = _REASONS.get(health.get("reason", ""))
    return f"{who} is {health['state']}" + (f", and {reason}" if reason else "") + shard


def _shards(shown: str) -> str:
    return f"shard{'' if shown.isdigit() else 's'} {shown}"


def _metrics(broker: AskedBroker) -> APIRouter:
    router = APIRouter(tags=["metrics"])
    # More at once would only take the threads that answer /healthz.
    pages = threading.Semaphore(_PAGES_MAX)

    @router.get("/metrics", summary="The broker's metrics in Prometheus' text format")
    def metrics(request: Request) -> Response:
        # Callers that ask for more than health do so in their own name.
        token = _token(broker, request)
        if not pages.acquire(blocking=False):
            raise Overloaded("other scrapes are under way", retry_after_us=SECOND_US)
        try:
            text = broker.metrics(token)
        finally:
            pages.release()
        return PlainTextResponse(text, media_type=_METRICS_TYPE)

    return router


def _token(broker: AskedBroker, request: Request) -> str:
    if not broker.guarded:
        return ""
    header = request.headers.get("authorization", "")
    if not header.lower().startswith(_BEARER):
        raise Unauthenticated("this broker asks for `Authorization: Bearer TOKEN`")
    return check_token(header[len(_BEARER) :].strip())


def _error_response(request: Request, error: Exception) -> Response:
    """Any refusal as problem details."""
    if isinstance(error, FastiError):
        return _problem(_STATUS.get(error.code, 500), error.code, error.message, error)
    assert isinstance(error, HTTPException)
    code = "not_found" if error.status_code == 404 else "invalid_argument"
    return _problem(error.status_code, code, f"{request.url.path}: {error.detail}", None)


def _problem(status: int, code: str, detail: str, error: FastiError | None) -> Response:
    body: dict[str, Any] = {"type": "about:blank", "title": code, "status": status}
    body |= {"detail": detail, "code": code}
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if error is not None:
        body |= {"retryable": error.retryable, "details": error.details}
        if error.retry_after_us is not None:
            headers["Retry-After"] = str(-(-error.retry_after_us // 1_000_000))
    return JSONResponse(body, status, headers, _PROBLEM_TYPE)
