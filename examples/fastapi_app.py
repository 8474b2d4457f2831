"""A web application that reminds: FastAPI in front, Fasti behind, the worker beside.

    python examples/fastapi_app.py                    # shows itself at work, and ends
    FASTI_ADDRESS=fasti://127.0.0.1:7170 uvicorn --app-dir examples fastapi_app:app

POST /reminders puts a message under the caller's own key, DELETE /reminders/KEY cancels it. The
outcomes of the broker are the answers of the API: a key that is taken or a reminder that is out
already is a 409, one that nobody knows a 404.
"""

import json
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import AwareDatetime, BaseModel

import fasti
from connection import parse_address

TOPIC = "example-web-reminders"


class Reminder(BaseModel):
    """What a caller sends. A time without a zone is refused by `AwareDatetime`."""

    key: str
    text: str
    at: AwareDatetime | None = None
    delay_seconds: float | None = None


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Connects, and has a thread deliver what falls due while the application runs."""
    client = fasti.connect(getattr(app.state, "address", None), owner="web")
    client.create_topic(TOPIC, lease="10s", max_attempts=5)
    app.state.producer = client.producer(TOPIC)
    app.state.messages = client.messages(TOPIC)
    app.state.delivered = []
    consumer = client.consumer(TOPIC)
    worker = threading.Thread(target=deliver, args=(consumer, app.state.delivered))
    worker.start()
    yield
    consumer.close()  # Ends the worker's loop, and gives back what it has not started.
    worker.join()
    client.close()


def deliver(consumer: fasti.Consumer, delivered: list[str]) -> None:
    """Where a real application would send an email."""
    for message in consumer:
        text = message.payload.decode()
        message.ack(wait=True)
        delivered.append(text)


app = FastAPI(lifespan=lifespan)

# The endpoints are plain functions: FastAPI runs them in threads, where waiting is fine.


@app.post("/reminders", status_code=201)
def put(reminder: Reminder) -> dict[str, Any]:
    """Durable when it answers."""
    sent = app.state.producer.send(
        reminder.text.encode(), key=reminder.key, at=reminder.at, delay=reminder.delay_seconds
    ).result(timeout=10)
    return answered(sent)


@app.delete("/reminders/{key}")
def cancel(key: str) -> dict[str, Any]:
    """After a 200 it is never delivered."""
    return answered(app.state.messages.cancel(key=key))


@app.get("/reminders/{key}")
def show(key: str) -> dict[str, Any]:
    """As it is now."""
    found = app.state.messages.get(key=key)
    if found is None:
        raise HTTPException(404, "not_found")
    return {"text": found["payload"].decode(), "state": found["state"], "due_us": found["due_us"]}


def answered(outcome: fasti.Outcome) -> dict[str, Any]:
    """An outcome as HTTP has it."""
    if outcome.status in ("not_found", "gone"):
        raise HTTPException(404, outcome.status)
    if not outcome.ok:
        raise HTTPException(409, outcome.status)
    return {"status": outcome.status, "id": outcome.id, "version": outcome.version}


# The rest is the show.


def request(method: str, url: str, body: dict[str, Any] | None = None) -> str:
    """A call as curl would make it: the status, and what the answer says."""
    data = None if body is None else json.dumps(body).encode()
    call = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(call) as reply:
            return f"{reply.status} {json.load(reply).get('status', '')}".rstrip()
    except urllib.error.HTTPError as refused:
        with refused:
            detail = json.load(refused)["detail"]
        return f"{refused.code} {detail if isinstance(detail, str) else detail[0]['type']}"


def show_off(url: str) -> None:
    """What a user of the API would do."""
    tea = {"key": "tea", "text": "the tea is ready", "delay_seconds": 0.5}
    bins = {"key": "bins", "text": "put the bins out", "delay_seconds": 3600}
    print("POST tea:", request("POST", f"{url}/reminders", tea))
    print("POST bins:", request("POST", f"{url}/reminders", bins))
    print("POST bins again:", request("POST", f"{url}/reminders", bins))
    print("DELETE bins:", request("DELETE", f"{url}/reminders/bins"))
    print("DELETE bins again:", request("DELETE", f"{url}/reminders/bins"))
    print("DELETE gym:", request("DELETE", f"{url}/reminders/gym"))
    naive = {"key": "x", "text": "x", "at": datetime(2030, 1, 1).isoformat()}  # noqa: DTZ001
    print("POST without a time zone:", request("POST", f"{url}/reminders", naive))
    while not app.state.delivered:
        time.sleep(0.01)
    print("delivered:", *app.state.delivered)
    print("DELETE tea:", request("DELETE", f"{url}/reminders/tea"))


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        app.state.address = parse_address() or f"embedded:{directory}"
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            show_off(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")
        finally:
            server.should_exit = True
            thread.join()


if __name__ == "__main__":
    main()
