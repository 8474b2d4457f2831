"""How the brokers of a cluster call each other: over NATS, to whom all of them are connected.

What comes in here is carried out as the caller `PEER`, which no client can be: it may tell a shard what is in
the catalogue. Whoever can write to these subjects has the credentials of NATS, and with them the journals.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fasti.broker.caller import PEER
from fasti.broker.host import SHARD_NUMBER, Host
from fasti.broker.peers import TIMEOUT_S
from fasti.cluster.bulletins import MemberSubjects
from fasti.cluster.nats import NatsConnection
from fasti.errors import FastiError, InvalidArgument, Unavailable
from fasti.protocol.problems import error_from_json, error_to_json
from fasti.protocol.schemas import VERSION

# Calls of other brokers that are carried out at once; more of them wait.
_WORKERS = 4


class ClusterPeers:
    """The other brokers, by the shards that they lead. Any thread."""

    def __init__(
        self,
        connection: NatsConnection,
        subjects: MemberSubjects,
        leader_of: Callable[[int], str | None],
    ) -> None:
        self._connection, self._subjects, self._leader_of = connection, subjects, leader_of

    def call(
        self, shard: int, action: str, header: Mapping[str, Any], timeout_s: float = TIMEOUT_S
    ) -> dict[str, Any]:
        """As `broker.peers.Peers` says."""
        name = self._leader_of(shard)
        if name is None:
            raise Unavailable(f"no broker leads shard {shard} now", details={"shard": shard})
        return self.call_broker(name, action, {**header, SHARD_NUMBER: shard}, timeout_s)

    def call_broker(
        self, name: str, action: str, header: Mapping[str, Any], timeout_s: float = TIMEOUT_S
    ) -> dict[str, Any]:
        """The reply of another broker, by its name. Raises what it says, or `unavailable`."""
        fields = {"version": VERSION, **header}
        request = json.dumps({"action": action, "header": fields}).encode()
        answer = json.loads(self._connection.ask(self._subjects.call(name), request, timeout_s))
        if "error" in answer:
            raise error_from_json(answer["error"])
        reply: dict[str, Any] = answer["reply"]
        return reply


class PeerAnswers:
    """Carries out what other brokers ask of this one's shards. `close` is for one thread."""

    def __init__(self, host: Host, connection: NatsConnection, subject: str) -> None:
        self._host, self._connection = host, connection
        self._workers = ThreadPoolExecutor(_WORKERS, "fasti-peer-call")
        self._stop = connection.listen(subject, self._take)

    def _take(self, data: bytes, reply_to: str) -> None:
        """In the thread of the connection, which must not wait."""
        if reply_to:
            self._workers.submit(self._carry_out, data, reply_to)

    def _carry_out(self, data: bytes, reply_to: str) -> None:
        try:
            answer: dict[str, Any] = {"reply": self._call(data)}
        except FastiError as error:
            answer = {"error": error_to_json(error)}
        except Exception as error:  # The caller is told, whatever it is.
            answer = {"error": error_to_json(FastiError(f"{type(error).__name__}: {error}"))}
        self._connection.send(reply_to, json.dumps(answer).encode())

    def _call(self, data: bytes) -> dict[str, Any]:
        try:
            request = json.loads(data)
            action, header = str(request["action"]), dict(request["header"])
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgument(f"not a call of a broker: {error}", field="request") from error
        reply, _ = self._host.service_for(action, header).call(PEER, action, header, [])
        return reply

    def close(self) -> None:
        """Takes no more; what is under way is finished."""
        self._stop()
        self._workers.shutdown()
