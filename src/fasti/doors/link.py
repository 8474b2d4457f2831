"""How processes of a broker reach each other: actions of the protocol over Arrow Flight.

The HTTP process asks its broker by it, and the broker's processes ask each other.

Any thread may call. A connection that is lost is made again by gRPC at the next call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow.flight as fl

from fasti.errors import TimedOut, Unauthenticated, Unavailable
from fasti.protocol.envelope import pack, unpack
from fasti.protocol.grpc_setup import prepare_grpc
from fasti.protocol.problems import error_from_json
from fasti.protocol.schemas import VERSION

# A machine that is busy for a moment has no broker that is ill.
_TIMEOUT_S = 5.0
# A page of metrics with some hundred thousand series.
REPLY_BYTES_MAX = 32 << 20
# A process that comes back is found soon: gRPC would wait for up to two minutes.
_RECONNECT_MS, _RECONNECT_MS_MAX = 100, 1_000


class BrokerLink:
    """A broker on the same machine, by address or by the path of a Unix socket.

    `token` is this process's own, if the broker asks for any.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: bool = False,
        token: str = "",
        reply_bytes_max: int = REPLY_BYTES_MAX,
    ) -> None:
        prepare_grpc()
        scheme = "grpc+tls" if tls else "grpc"
        # The certificate is made for the name that others use; here both ends are one machine's,
        # and the other end is this process's parent.
        safe = tls and not address.startswith("/")
        options: dict[str, Any] = {"disable_server_verification": True} if safe else {}
        # Whatever the broker says, this process doesn't grow by more than that.
        options["generic_options"] = [
            ("grpc.max_receive_message_length", reply_bytes_max),
            ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MS),
            ("grpc.min_reconnect_backoff_ms", _RECONNECT_MS),
            ("grpc.max_reconnect_backoff_ms", _RECONNECT_MS_MAX),
        ]
        place = f"grpc+unix://{address}" if address.startswith("/") else f"{scheme}://{address}"
        self._client = fl.FlightClient(place, **options)
        self._token = token

    @property
    def guarded(self) -> bool:
        """Whether the broker asks for tokens."""
        return bool(self._token)

    def call(
        self,
        action: str,
        token: str = "",
        timeout: float = _TIMEOUT_S,
        header: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The header of an action's reply. Raises `FastiError` and nothing else."""
        request = pack({"version": VERSION, **(header or {})})
        used = token or self._token
        headers = [(b"authorization", f"Bearer {used}".encode())] if used else []
        options = fl.FlightCallOptions(timeout=timeout, headers=headers)
        try:
            (result,) = self._client.do_action((action, request), options)
        except fl.FlightUnauthenticatedError as error:
            raise Unauthenticated("the token is not known here") from error
        except fl.FlightTimedOutError as error:
            raise TimedOut(f"the broker did not answer within {timeout:g} s") from error
        except (fl.FlightError, OSError, ValueError) as error:
            raise Unavailable(f"the broker does not answer: {_first_line(error)}") from error
        reply, _ = unpack(result.body)
        if "error" in reply:
            problem = reply["error"]
            raise error_from_json(problem if isinstance(problem, dict) else {})
        return reply

    def close(self) -> None:
        """Lets the connection go."""
        self._client.close()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]
