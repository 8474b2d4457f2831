"""Redis: a sorted set by due time, payloads in a hash, leases and acks as Lua scripts.

A lease moves ids to a second sorted set by when the lease ends, as the usual libraries do it. A
consumer that finds nothing asks again every two milliseconds, or sooner if the next message is due.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from typing import Any

from benchmarks.peers import client as peers
from benchmarks.peers.server import Server as BaseServer
from benchmarks.peers.server import output

_POLL_S = 0.002

_SCHEDULE = """
local first = redis.call('INCRBY', KEYS[3], #ARGV / 2) - #ARGV / 2
for row = 1, #ARGV, 2 do
  local id = string.format('%d', first + (row + 1) / 2)
  redis.call('ZADD', KEYS[1], ARGV[row], id)
  redis.call('HSET', KEYS[2], id, ARGV[row + 1])
end
return first
"""
_LEASE = """
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', ARGV[1], 'LIMIT', 0, 1000)) do
  redis.call('ZREM', KEYS[3], id)
  redis.call('ZADD', KEYS[1], ARGV[1], id)
end
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #ids == 0 then
  local next = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  return {next[2] or ''}
end
local found = {''}
for from = 1, #ids, 1000 do
  local part, leased = {}, {}
  for row = from, math.min(from + 999, #ids) do
    part[#part + 1] = ids[row]
    leased[#leased + 1] = ARGV[3]
    leased[#leased + 1] = ids[row]
  end
  redis.call('ZREM', KEYS[1], unpack(part))
  redis.call('ZADD', KEYS[3], unpack(leased))
  for row, body in ipairs(redis.call('HMGET', KEYS[2], unpack(part))) do
    found[#found + 1] = part[row]
    found[#found + 1] = body
  end
end
return found
"""
_REMOVE = """
local count = 0
for from = 1, #ARGV, 1000 do
  local to = math.min(from + 999, #ARGV)
  count = count + redis.call('ZREM', KEYS[1], unpack(ARGV, from, to))
  redis.call('HDEL', KEYS[2], unpack(ARGV, from, to))
end
return count
"""
_MOVE = """
local count = 0
for row = 2, #ARGV do
  count = count + redis.call('ZADD', KEYS[1], 'XX', 'CH', ARGV[1], ARGV[row])
end
return count
"""
# A script takes at most some thousands of arguments to `unpack`, and holds up the server meanwhile.
_PIECE = 5_000


class Server(BaseServer):
    """An append-only file, synced `always` or `everysec`; no snapshots."""

    package, program = "redis-server", "redis-server"

    @classmethod
    def version(cls) -> str:
        words = output(cls.executable() or cls.program, "--version").split()
        return next((word[2:] for word in words if word.startswith("v=")), "unknown")

    def command(self) -> list[str]:
        return [
            str(self.executable()),
            *("--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.directory)),
            *("--appendonly", "yes", "--appendfsync", self.settings["appendfsync"]),
            *("--save", "", "--daemonize", "no"),
        ]

    def answers(self) -> bool:
        # It takes connections while it still loads its file.
        import socket
        from contextlib import suppress

        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as probe:
            probe.sendall(b"PING\r\n")
            return probe.recv(16).startswith(b"+PONG")
        return False


def connect(address: str, queue: str) -> Client:
    """By redis-py with hiredis."""
    import redis

    host, _, port = address.partition(":")
    return Client(redis.Redis(host, int(port)), queue)


class Client(peers.Client):
    """One connection."""

    def __init__(self, connection: Any, queue: str) -> None:
        self._redis = connection
        self._due, self._body = f"{queue}:due", f"{queue}:body"
        self._leased, self._ids = f"{queue}:leased", f"{queue}:ids"
        self._schedule = connection.register_script(_SCHEDULE)
        self._lease = connection.register_script(_LEASE)
        self._remove = connection.register_script(_REMOVE)
        self._move = connection.register_script(_MOVE)

    def schedule(self, payload: bytes, due_us: int) -> Any:
        return self._put([due_us or peers.now_us(), payload]) + 1

    def schedule_batch(self, column: Any, dues_us: array[int]) -> None:
        self._put([value for row in zip(dues_us, column, strict=True) for value in row])

    def schedule_many(self, payloads: list[bytes], dues_us: array[int]) -> Sequence[Any]:
        first = self._put([value for row in zip(dues_us, payloads, strict=True) for value in row])
        return range(first + 1, first + 1 + len(payloads))

    def _put(self, arguments: list[Any]) -> int:
        return int(self._schedule(keys=[self._due, self._body, self._ids], args=arguments))

    def cancel(self, handle: Any) -> None:
        self.cancel_many([handle])

    def cancel_many(self, handles: Sequence[Any]) -> None:
        done = self._remove(keys=[self._due, self._body], args=list(handles))
        assert done == len(handles), f"{done} of {len(handles)} cancelled"

    def move(self, handle: Any, due_us: int) -> None:
        self.move_many([handle], due_us)

    def move_many(self, handles: Sequence[Any], due_us: int) -> None:
        done = self._move(keys=[self._due], args=[due_us, *handles])
        assert done == len(handles), f"{done} of {len(handles)} moved"

    def consume(self, handler: peers.Handler, idle_s: float, batch: int = 1) -> None:
        while found := self._take(batch, idle_s):
            enough = False
            for body in found[1::2]:
                enough = handler(body) or enough
            self._ack(found[::2])
            if enough:
                return

    def consume_batches(self, handler: peers.BatchHandler, count: int, idle_s: float) -> None:
        while found := self._take(min(count, _PIECE), idle_s):
            self._ack(found[::2])
            if handler(len(found) // 2):
                return

    def _ack(self, ids: list[Any]) -> None:
        self._remove(keys=[self._leased, self._body], args=ids)

    def _take(self, count: int, idle_s: float) -> list[Any]:
        keys = [self._due, self._body, self._leased]
        deadline = time.monotonic() + idle_s
        while True:
            now = peers.now_us()
            next_due, *found = self._lease(
                keys=keys, args=[now, count, now + peers.LEASE_S * 1_000_000]
            )
            if found or time.monotonic() > deadline:
                return list(found)
            wait_s = (float(next_due) - peers.now_us()) / 1e6 if next_due else _POLL_S
            time.sleep(min(_POLL_S, max(0.0, wait_s)))

    def close(self) -> None:
        self._redis.close()
