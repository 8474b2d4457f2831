"""What each NATS server says of itself: its version, how it syncs, and its own copy of each stream.

The stream's leader answers for the stream, and knows nothing of what is damaged elsewhere. So every server is
asked: over the system account, which all of them hear (`SystemAccount`), or at its monitoring port
(`MonitorPorts`). A server that doesn't answer is not in the reports; that says nothing about its files.

One thread at a time.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlsplit

from fasti.cluster.nats import NatsConnection
from fasti.errors import FastiError

_ASK_S = 1.0
MONITOR_PORT = 8222
# No server says so much of itself: what is longer is something else.
_REPORT_BYTES_MAX = 64 << 20


class ReplicaState(NamedTuple):
    """One server's own copy of a stream. Of an empty one, first is last plus one."""

    first: int
    last: int
    messages: int
    deleted: int
    # Whether this server leads the stream.
    leads: bool


class ServerReport(NamedTuple):
    """``identity`` is drawn anew whenever the server starts. ``sync_always`` is None where nothing is kept.

    ``used_bytes`` are those of all its streams, of which it takes ``bytes_max`` in all; None: it doesn't say.
    """

    name: str
    identity: str
    version: str
    sync_always: bool | None
    streams: Mapping[str, ReplicaState]
    used_bytes: int = 0
    bytes_max: int | None = None


class Servers(Protocol):
    """A way to ask all servers."""

    def ask(self) -> list[ServerReport]:
        """Of those that answer, by name. Raises nothing."""

    def close(self) -> None:
        """Nothing is asked any more."""


class SystemAccount:
    """By a connection of the system account. ``expected``: when so many have answered, nobody is waited for."""

    def __init__(self, connection: NatsConnection, account: str, expected: int) -> None:
        self._connection, self._expected = connection, expected
        self._request = json.dumps({"streams": True, "account": account}).encode()

    def ask(self) -> list[ServerReport]:
        reports: dict[str, ServerReport] = {}
        with suppress(FastiError):
            answers = self._connection.gather(
                "$SYS.REQ.SERVER.PING.JSZ",
                self._request,
                _ASK_S,
                lambda _, number: number >= self._expected,
            )
            for answer in answers:
                with suppress(ValueError, KeyError, TypeError):
                    told = json.loads(answer.data)
                    server = told["server"]
                    found = read_report(server["name"], server["id"], server["ver"], told["data"])
                    reports[found.name] = found
        self._expected = max(self._expected, len(reports))
        return sorted(reports.values())

    def close(self) -> None:
        self._connection.close()


class MonitorPorts:
    """By the monitoring port of each server, like `http://10.0.0.1:8222`."""

    def __init__(self, urls: Sequence[str], account: str) -> None:
        self._urls = [url.rstrip("/") for url in urls]
        self._streams = f"/jsz?streams=true&acc={quote(account)}"
        # Whatever proxies the process may know: these are machines nearby.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(self) -> list[ServerReport]:
        reports: dict[str, ServerReport] = {}
        for url in self._urls:
            with suppress(OSError, ValueError, KeyError, TypeError):
                about = self._get(f"{url}/varz")
                streams = self._get(url + self._streams)
                name = about["server_name"]
                reports[name] = read_report(name, about["server_id"], about["version"], streams)
        return sorted(reports.values())

    def _get(self, url: str) -> dict[str, Any]:
        with self._opener.open(url, timeout=_ASK_S) as answer:
            told: dict[str, Any] = json.loads(answer.read(_REPORT_BYTES_MAX))
            return told

    def close(self) -> None:
        """It has nothing open."""


def usual_monitors(urls: Sequence[str]) -> list[str]:
    """Where servers have their monitoring ports if nobody has chosen others."""
    hosts = (urlsplit(url).hostname or "" for url in urls)
    return [
        f"http://[{host}]:{MONITOR_PORT}" if ":" in host else f"http://{host}:{MONITOR_PORT}"
        for host in dict.fromkeys(hosts)
    ]


def account_of(connection: NatsConnection) -> str:
    """The account in which a connection's streams are. Raises `TimedOut` or `Unavailable`."""
    told = json.loads(connection.ask("$SYS.REQ.USER.INFO", b"", 2.0))
    return str(told["data"]["account"])


def read_report(name: str, identity: str, version: str, told: Mapping[str, Any]) -> ServerReport:
    """Of the answer to `JSZ`. Raises `KeyError`, `TypeError` or `ValueError` if it is something else."""
    streams = {
        str(stream["name"]): _replica(name, stream)
        for account in told.get("account_details") or ()
        for stream in account.get("stream_detail") or ()
    }
    config = told.get("config") or {}
    is_off = bool(told.get("disabled")) or not config.get("store_dir")
    sync_always = None if is_off else bool(config.get("sync_always"))
    used_bytes, bytes_max = int(told.get("storage") or 0), int(config.get("max_storage") or 0)
    return ServerReport(
        *(str(name), str(identity), str(version), sync_always, streams),
        used_bytes=used_bytes,
        bytes_max=bytes_max if bytes_max > 0 else None,
    )


def _replica(server: str, stream: Mapping[str, Any]) -> ReplicaState:
    state = stream["state"]
    messages, last = int(state["messages"]), int(state["last_seq"])
    first = int(state["first_seq"]) if messages else last + 1
    # Without a cluster of servers there is nobody else.
    leads = (stream.get("cluster") or {}).get("leader", server) == server
    return ReplicaState(first, last, messages, int(state.get("num_deleted") or 0), leads)
