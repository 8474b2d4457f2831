"""The HTTP process: `python -m fasti.doors.http_process`, started by the broker only.

Its orders come as a line of JSON on stdin, so that a token is never seen on a command line or in
an environment; the listening socket comes as an inherited descriptor. Stdin stays open as long as
the broker lives: its end is the sign to end, however the broker ended. Where the broker is several
processes, further lines tell what each of them does.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import uvicorn

    from fasti.doors.whole_broker import AskedBroker


def main() -> None:
    """Reads the orders and serves."""
    orders: dict[str, Any] = json.loads(_read_line(sys.stdin.fileno()))
    facts = _Facts()
    # Before anything that takes long: the next broker may want the port.
    threading.Thread(target=facts.listen, name="fasti-parent", daemon=True).start()
    _serve(orders, facts)


def _read_line(descriptor: int) -> bytes:
    """Up to the line's end and no further."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(descriptor, 1)
        if not piece:
            # A person tries it by hand, or the broker died before it gave its orders.
            by_hand = "this is started by the broker: see `fasti serve --http`"
            sys.exit(by_hand if os.isatty(descriptor) else 0)
        line += piece
    return line


class _Facts:
    """What the supervisor tells of the broker's processes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: list[dict[str, Any]] = []
        self._note: Callable[[dict[str, Any]], None] = self._lines.append

    def listen(self) -> None:
        """Until the broker is gone, or wants us gone: nothing here needs saving."""
        rest = b""
        with contextlib.suppress(OSError):
            while piece := os.read(sys.stdin.fileno(), 4096):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    with self._lock:
                        self._note(json.loads(line))
        os._exit(0)

    def pass_on(self, note: Callable[[dict[str, Any]], None]) -> None:
        """What came so far, and what comes from now on."""
        with self._lock:
            self._note = note
            for facts in self._lines:
                note(facts)


def _serve(orders: dict[str, Any], facts: _Facts) -> None:
    from fasti.broker.logs import set_up
    from fasti.doors.http import build

    set_up(orders["log_level"], orders["log_format"])
    # What uvicorn tells of its own comings and goings is told better by the broker.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    server = _server(build(_broker(orders, facts)), orders["tls"] or (None, None))
    server.run(sockets=[socket.socket(fileno=orders["descriptor"])])


def _broker(orders: dict[str, Any], facts: _Facts) -> AskedBroker:
    from fasti.doors.link import BrokerLink
    from fasti.doors.whole_broker import Member, OneProcess, SeveralProcesses

    if "processes" not in orders:
        tls = orders["tls"] is not None
        return OneProcess(BrokerLink(orders["broker"], tls=tls, token=orders["token"]))
    from fasti.doors.peer_folder import PeerFolder

    folder = PeerFolder(Path(orders["data"]))
    members = [
        Member(one["process"], one["shards"], BrokerLink(folder.socket_path(one["shards"][0])))
        for one in orders["processes"]
    ]
    broker = SeveralProcesses(members, orders["guarded"])
    facts.pass_on(broker.note)
    return broker


def _server(app: Any, tls: tuple[str | None, str | None]) -> uvicorn.Server:
    """Serves for ever, and sleeps while there are no requests."""
    import asyncio

    import uvicorn

    from fasti.doors.http_bounds import BoundedProtocol

    class Server(uvicorn.Server):
        async def main_loop(self) -> None:
            """Instead of looking ten times a second whether it should end."""
            await self.on_tick(0)
            await asyncio.Event().wait()

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Signals do what they always do."""
            yield

    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        date_header=False,
        server_header=False,
        lifespan="off",
        ssl_certfile=tls[0],
        ssl_keyfile=tls[1],
    )
    return Server(config)


if __name__ == "__main__":
    main()
