"""NATS JetStream behind a small blocking face: nats-py in one event-loop thread.

The rules:

- Nothing here decides. A publish says that it was stored, that the server refused it (`Refused`), or
  that no answer came; what that means is for the caller, who reads (`writer.py`).
- Every call has a timeout. A connection that is lost is made again, to any of the servers, for ever;
  calls meanwhile end with `TimedOut` or `Unavailable`.
- `get` asks the stream's leader. `get_direct` and `read` ask whichever replica is near: it may lag, so
  that what it doesn't have may be there all the same.

Threads: any, once made. nats-py is imported with the first connection (extra `cluster`).
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from fasti.cluster.nats_access import unreachable
from fasti.errors import Closed, FastiError, InvalidArgument, NotFound, TimedOut, Unavailable
from fasti.extras import required

Result = TypeVar("Result")

_API = "$JS.API"
LAST_SEQUENCE = "Nats-Expected-Last-Sequence"
LAST_SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
_STREAM_NOT_FOUND = 10059
_MESSAGE_NOT_FOUND = 10037
# Several copies, of a server that is in no cluster of servers.
_NO_REPLICAS = 10074
_UNANSWERED_CODES = (408, 503)
# The account, the server (for two reasons) or the stream has no room for more.
_NO_ROOM = (10002, 10023, 10047, 10077)
_PENDING_BYTES = 32 << 20
# A request waits for its answer in the loop. What is sent to a server that was stopped may wait before.
_GRACE_S = 1.0


class Refused(Exception):
    """The server did not take a message, it says. ``text`` is its reason."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.text, self.code = text, code


class NoRoom(Refused):
    """The server did not take it for want of room."""


class StoredMessage(NamedTuple):
    """A message of a stream."""

    sequence: int
    subject: str
    data: bytes


class StreamState(NamedTuple):
    """A stream's state as its leader sees it. An empty stream's first sequence is its last plus one."""

    first_sequence: int
    last_sequence: int
    size_bytes: int
    # The server that leads it; empty where there is one only.
    leader: str
    config: Mapping[str, Any]
    # The other servers that keep it and can be reached, by name.
    followers: tuple[str, ...] = ()


class Answer(NamedTuple):
    """One of several answers to one request. ``reply_to`` is empty if it asks for none."""

    data: bytes
    reply_to: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NatsOptions:
    """How to reach NATS; `nats_access.py` makes them of settings.

    ``credentials`` is the path of a .creds file; a user comes with its password. None of them stands in the
    URLs: servers that are found later would be reached without it.
    """

    urls: Sequence[str]
    tls: ssl.SSLContext | None = None
    credentials: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    connect_timeout_s: float = 2.0
    timeout_s: float = 5.0

    def to_client(self) -> dict[str, Any]:
        """As nats-py takes them."""
        options: dict[str, Any] = {
            "servers": list(self.urls),
            "connect_timeout": self.connect_timeout_s,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 0.1,
            # A server that was stopped, not killed, is left after two unanswered ones.
            "ping_interval": 1,
            "max_outstanding_pings": 2,
            "pending_size": _PENDING_BYTES,
        }
        given = {
            "tls": self.tls,
            "user_credentials": self.credentials,
            "user": self.user,
            "password": self.password,
            "token": self.token,
        }
        return options | {name: value for name, value in given.items() if value is not None}


class NatsConnection:
    """One connection for all shards of a process. Raises `Unavailable` if no server answers."""

    def __init__(self, options: NatsOptions) -> None:
        if not options.urls:
            raise InvalidArgument("at least one address of NATS is needed", field="urls")
        with required("cluster", "a cluster"):
            import nats.aio.client
            import nats.errors
        self.options = self._options = options
        self._errors = nats.errors
        self._client = nats.aio.client.Client()
        self._loop = asyncio.new_event_loop()
        self._closed = False
        # What went wrong last in the connection itself. The calls that it concerns end without an answer.
        self._trouble: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="fasti-nats", daemon=True)
        self._thread.start()
        try:
            self._call(self._connect(), options.connect_timeout_s * (len(options.urls) + 1))
        except FastiError as error:
            self.close()
            raise unreachable(options.urls, self._trouble) from error

    async def _note_trouble(self, error: Exception) -> None:
        self._trouble = error

    async def _connect(self) -> None:
        options = self._options.to_client()
        # While the first connection is made, a server that is not there is passed over once.
        first = options | {"max_reconnect_attempts": 1, "allow_reconnect": True}
        await self._client.connect(
            **first, error_cb=self._note_trouble, disconnected_cb=None, reconnected_cb=None
        )
        self._client.options["max_reconnect_attempts"] = -1

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def close(self) -> None:
        """Ends the connection and its thread. What waits for an answer gets `Unavailable`."""
        if self._closed:
            return
        self._closed = True
        future = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        try:
            future.result(5)
        except Exception:
            future.cancel()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        if not self._thread.is_alive():
            self._loop.close()

    async def _close(self) -> None:
        await self._client.close()
        own = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not own]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def max_payload(self) -> int:
        """The most bytes that the server takes in one message, headers included."""
        return int(self._client.max_payload)

    @property
    def server_name(self) -> str:
        """Of the server that it is connected to now, or was last."""
        return str(self._client._server_info.get("server_name", ""))

    # Messages

    def publish(
        self,
        subject: str,
        data: bytes,
        *,
        last_sequence: int | None = None,
        last_subject_sequence: int | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """The sequence at which the message was stored. `Refused`, `TimedOut` or `Unavailable`."""
        headers: dict[str, str] = {}
        if last_sequence is not None:
            headers[LAST_SEQUENCE] = str(last_sequence)
        if last_subject_sequence is not None:
            headers[LAST_SUBJECT_SEQUENCE] = str(last_subject_sequence)
        return stored_sequence(self._request(subject, data, timeout_s, headers or None).data)

    # Plain subjects: nothing is stored

    def send(self, subject: str, data: bytes) -> None:
        """Written when the connection gets to it; lost if there is none, or nobody listens."""
        if not self._closed:
            asyncio.run_coroutine_threadsafe(self._send(subject, data), self._loop)

    async def _send(self, subject: str, data: bytes) -> None:
        # While it is connected again, nats-py would keep it and send it then: old news.
        if self._client.is_connected:
            with suppress(self._errors.Error, OSError):
                await self._client.publish(subject, data)

    def ask(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        """The answer of whoever listens there. `TimedOut`, or `Unavailable` if nobody does."""
        return bytes(self._request(subject, data, timeout_s).data)

    def gather(
        self, subject: str, data: bytes, timeout_s: float, is_last: Callable[[Answer, int], bool]
    ) -> list[Answer]:
        """The answers of all who listen there, up to the one that is the last, or for so long.

        `is_last` is called with each and its number, from 1, in the connection's thread.
        """

        async def collect() -> list[Answer]:
            inbox = self._client.new_inbox()
            subscription = await self._client.subscribe(inbox, pending_bytes_limit=-1)
            answers: list[Answer] = []
            deadline = self._loop.time() + timeout_s
            try:
                await self._client.publish(subject, data, reply=inbox)
                while deadline > self._loop.time():
                    message = await subscription.next_msg(deadline - self._loop.time())
                    headers = {str(key): value for key, value in (message.headers or {}).items()}
                    answers.append(Answer(message.data, message.reply, headers))
                    if is_last(answers[-1], len(answers)):
                        break
            except self._errors.TimeoutError:
                pass
            finally:
                await subscription.unsubscribe()
            return answers

        return self._call(collect(), timeout_s + _GRACE_S)

    def probe(self, subject: str, timeout_s: float, tell: Callable[[bool | None], None]) -> None:
        """Asks whether anybody listens, and returns at once. `tell` is called in the connection's thread:
        True if it was answered, False if nobody is there, None if that can't be said.
        """
        if not self._closed:
            asyncio.run_coroutine_threadsafe(self._probe(subject, timeout_s, tell), self._loop)

    async def _probe(
        self, subject: str, timeout_s: float, tell: Callable[[bool | None], None]
    ) -> None:
        try:
            await self._client.request(subject, b"", timeout=timeout_s)
            tell(True)
        except self._errors.NoRespondersError:
            tell(False)
        except (self._errors.Error, TimeoutError, OSError):
            tell(None)

    def listen(self, subject: str, take: Callable[[bytes, str], None]) -> Callable[[], None]:
        """Has `take` called with what comes, and where to answer (or ""); call the result to end it.

        `take` is called in the connection's thread, and must not wait.
        """

        async def told(message: Any) -> None:
            take(bytes(message.data), message.reply)

        subscription = self._call(self._client.subscribe(subject, cb=told), self._options.timeout_s)

        def stop() -> None:
            with suppress(FastiError):
                self._call(subscription.unsubscribe(), self._options.timeout_s)

        return stop

    def get(
        self,
        stream: str,
        sequence: int | None = None,
        *,
        subject: str | None = None,
        timeout_s: float | None = None,
    ) -> StoredMessage | None:
        """A message by its sequence, or a subject's last one, from the stream's leader."""
        wanted = {"seq": sequence} if subject is None else {"last_by_subj": subject}
        request = json.dumps(wanted).encode()
        try:
            answer = self._json(
                self._request(f"{_API}.STREAM.MSG.GET.{stream}", request, timeout_s)
            )
        except NotFound:
            return None
        message = answer["message"]
        data = base64.b64decode(message.get("data") or "")
        return StoredMessage(int(message["seq"]), message["subject"], data)

    def get_direct(
        self, stream: str, subject: str, timeout_s: float | None = None
    ) -> StoredMessage | None:
        """A subject's last message from any replica; None also if that one lags."""
        name = f"{_API}.DIRECT.GET.{stream}.{subject}"
        return _direct(self._request(name, b"", timeout_s))

    def read(
        self, stream: str, first: int, max_bytes: int, timeout_s: float | None = None
    ) -> list[StoredMessage]:
        """Messages from a sequence on, in order, from any replica; none if it has none there."""
        wait_s = timeout_s or self._options.timeout_s
        return self._call(self._read(stream, first, max_bytes, wait_s), wait_s + _GRACE_S)

    async def _read(
        self, stream: str, first: int, max_bytes: int, timeout_s: float
    ) -> list[StoredMessage]:
        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(inbox, pending_bytes_limit=-1)
        name, request = batch_request(stream, first, max_bytes)
        messages: list[StoredMessage] = []
        deadline = self._loop.time() + timeout_s
        try:
            await self._client.publish(name, request, reply=inbox)
            while True:
                try:
                    reply = await subscription.next_msg(max(0.001, deadline - self._loop.time()))
                except self._errors.TimeoutError:
                    if not messages:
                        raise
                    # Who is slow gets on with what there is.
                    return messages
                message = _direct(reply)
                if message is None:
                    return messages
                messages.append(message)
        finally:
            await subscription.unsubscribe()

    # Streams

    def stream_state(self, stream: str, timeout_s: float | None = None) -> StreamState | None:
        """None if there is no such stream."""
        try:
            answer = self._api(f"STREAM.INFO.{stream}", b"", timeout_s)
        except NotFound:
            return None
        return _state(answer)

    def ensure_stream(self, config: Mapping[str, Any]) -> StreamState:
        """Makes a stream unless it is there; `InvalidArgument` if it is, with other settings."""
        name = config["name"]
        state = self.stream_state(name)
        if state is None:
            request = json.dumps(dict(config)).encode()
            try:
                answer = self._json(self._request(f"{_API}.STREAM.CREATE.{name}", request, None))
                state = _state(answer)
            except Refused as refusal:
                if refusal.code == _NO_REPLICAS:
                    message = f"NATS does not make the stream {name}: {refusal.text}"
                    raise InvalidArgument(message, field="nats_replicas") from refusal
                # Another broker may have been first.
                state = self.stream_state(name)
                if state is None:
                    message = f"NATS does not make the stream {name}: {refusal.text}"
                    raise Unavailable(message) from refusal
        for key, value in config.items():
            if state.config.get(key, _default(value)) != value:
                stored = state.config.get(key)
                message = f"the stream {name} has {key}={stored!r}, {value!r} is needed"
                raise InvalidArgument(message, field=key)
        return state

    def delete_stream(self, stream: str) -> None:
        """For tests, and for an operator who removes a cluster."""
        self._api(f"STREAM.DELETE.{stream}", b"")

    def purge(self, stream: str, *, below: int | None = None, subject: str | None = None) -> None:
        """Removes messages below a sequence, or all of the subjects that match."""
        wanted = {"seq": below} if subject is None else {"filter": subject}
        request = json.dumps(wanted).encode()
        self._api(f"STREAM.PURGE.{stream}", request)

    def subjects(self, stream: str, pattern: str) -> list[str]:
        """The subjects of a stream's messages that match."""
        found: list[str] = []
        while True:
            wanted = {"subjects_filter": pattern, "offset": len(found)}
            request = json.dumps(wanted).encode()
            answer = self._api(f"STREAM.INFO.{stream}", request)
            page = answer["state"].get("subjects") or {}
            found.extend(page)
            if not page or len(found) >= int(answer.get("total", 0)):
                return found

    # The loop's thread

    def _request(
        self,
        subject: str,
        data: bytes,
        timeout_s: float | None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        wait_s = timeout_s or self._options.timeout_s
        work = self._client.request(subject, data, timeout=wait_s, headers=headers)
        return self._call(work, wait_s + _GRACE_S)

    def _call(self, work: Coroutine[Any, Any, Result], timeout_s: float) -> Result:
        if self._closed:
            work.close()
            raise Closed("the connection to NATS is closed")
        future: Future[Result] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except (TimeoutError, self._errors.TimeoutError) as error:
            future.cancel()
            raise TimedOut("NATS did not answer in time") from error
        except self._errors.NoRespondersError as error:
            # It comes at once: whoever tries again shall not spin.
            time.sleep(0.01)
            raise Unavailable("nothing in NATS answers for this stream") from error
        except (self._errors.Error, OSError, asyncio.CancelledError) as error:
            raise Unavailable(f"the connection to NATS failed: {error!r}") from error

    def _api(self, name: str, request: bytes, timeout_s: float | None = None) -> dict[str, Any]:
        """A request of the JetStream API that the server has no reason to refuse for good."""
        try:
            return self._json(self._request(f"{_API}.{name}", request, timeout_s))
        except Refused as refusal:
            raise Unavailable(f"NATS refuses {name}: {refusal.text}") from refusal

    def _json(self, reply: Any) -> dict[str, Any]:
        return _parse(reply.data)


def stored_sequence(answer: bytes) -> int:
    """The sequence that a publish's answer tells; raises as `NatsConnection.publish`."""
    return int(_parse(answer)["seq"])


def _parse(data: bytes) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(data)
    error = answer.get("error")
    if error is None:
        return answer
    code = int(error.get("err_code", 0))
    text = str(error.get("description", ""))
    if code in (_STREAM_NOT_FOUND, _MESSAGE_NOT_FOUND):
        raise NotFound(text)
    if code in _NO_ROOM:
        raise NoRoom(text, code)
    if error.get("code") in _UNANSWERED_CODES:
        raise Unavailable(f"NATS: {text}")
    raise Refused(text, code)


def batch_request(stream: str, first: int, max_bytes: int) -> tuple[str, bytes]:
    """Where to ask a replica for messages from a sequence on, and how."""
    request = {"seq": first, "next_by_subj": ">", "batch": 1000, "max_bytes": max_bytes}
    return f"{_API}.DIRECT.GET.{stream}", json.dumps(request).encode()


def _direct(reply: Any) -> StoredMessage | None:
    headers = reply.headers or {}
    status = headers.get("Status")
    if status is not None and "Nats-Sequence" not in headers:
        if status in ("404", "204"):
            return None
        raise Unavailable(f"NATS: {status} {headers.get('Description', '')}")
    return StoredMessage(int(headers["Nats-Sequence"]), headers["Nats-Subject"], reply.data)


def _state(answer: Mapping[str, Any]) -> StreamState:
    state = answer["state"]
    last = int(state["last_seq"])
    first = int(state["first_seq"]) if state["messages"] else last + 1
    cluster = answer.get("cluster") or {}
    replicas = cluster.get("replicas") or ()
    followers = tuple(sorted(str(each["name"]) for each in replicas if not each.get("offline")))
    leader, size_bytes = str(cluster.get("leader", "")), int(state["bytes"])
    return StreamState(first, last, size_bytes, leader, answer["config"], followers)


def _default(value: Any) -> Any:
    """What the server means by a field that it leaves out."""
    return type(value)()
