"""An app whose handlers run in worker processes, which import this module."""

from __future__ import annotations

import os
import time
from typing import Any

import fasti
from tests.integration.app_rig import await_line, tell

app = fasti.App()
hooks: list[str] = []


@app.on_start
def begin() -> None:
    hooks.append("start")


@app.middleware
def noted(message: Any, call_next: Any) -> Any:
    hooks.append(f"attempt {message.attempts}")
    return call_next(message)


@app.on("jobs", kind="processes", concurrency=1, max_attempts=1, time_limit="1h")
def work(job: dict[str, Any], message: fasti.Message) -> None:
    """Does what it is told, and tells that it is there."""
    tell(job["mailbox"], os.getpid(), message.key, *hooks)
    hooks.clear()
    action = job.get("do")
    if action == "wait":
        await_line(job["gate"])
    elif action == "raise":
        raise ValueError("as told")
    elif action == "retry":
        raise fasti.Retry("1h", count=False)
    elif action == "reject":
        message.reject("by hand")
    elif action == "follow":
        work.later({"mailbox": job["mailbox"]}, key="followed")
    elif action == "exit":
        os._exit(7)


@app.on("hung", kind="processes", time_limit="2s", max_attempts=1)
async def hang(job: dict[str, Any]) -> None:
    """Never ends by itself, and can't be cancelled either."""
    tell(job["mailbox"], os.getpid())
    while True:
        time.sleep(1)  # noqa: ASYNC251


@app.on("spinning", kind="processes", create={"lease": "2s"})
def spin(job: dict[str, Any], message: fasti.Message) -> None:
    """Needs a core for several lengths of a lease."""
    tell(job["mailbox"], "spins", message.attempts)
    until = time.monotonic() + job["seconds"]
    while time.monotonic() < until:
        pass


@app.on("asked", kind="processes")
def answer(question: dict[str, Any], message: fasti.Message) -> dict[str, int] | None:
    """Answers by what it returns, or by its own word."""
    if question["do"] == "reply":
        message.reply(b"by hand", headers={"from": "a process"})
        return None
    return {"pid": os.getpid()}
