"""Processes that fork: servers that load an application once and fork its workers.

gRPC doesn't survive a fork: its threads are gone in the child, and the next call there never returns.
So before a fork all connections of this process end, and with the last of them gRPC itself; after
it the parent connects again, as after any lost connection, and repeats what has no answer. The child
finds nothing of gRPC and connects when it needs to. Locks are held over the fork, so that none
belongs to a thread that the child doesn't have.

In the child clients, producers, readers and apps go on by themselves, under new names; what was on
its way at the fork is the parent's. Consumers are the parent's too, with their names and leases.

Where gRPC can't be ended in time (a thread reads a long answer, say) every call of the child raises an
error at once: `refusal`.
"""

from __future__ import annotations

import ctypes
import logging  # noqa: F401  Loaded before the end of this file, which says why.
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Protocol

from fasti.errors import FastiError, IllegalTransition

# A fork waits for this long at most.
_PATIENCE_S = 2.0
# And, whatever the connections took of that, so long for locks: one that is not ours at the fork is
# held for ever in the child.
_LOCKS_S = 1.0
_LOOK_S = 0.002
# What gRPC calls its threads.
_GRPC_THREADS = ("grpc", "event_engine", "lifeguard")


class Lock(Protocol):
    """Of either kind."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...
    def release(self) -> None: ...


class Forkable(Protocol):
    """What has locks, threads or a name that a child process can't share."""

    def _fork_locks(self) -> Iterable[Lock]:
        """Taken before a fork, in this order."""

    def _forked(self) -> None:
        """Called in the child: begins anew, alone."""


class Connection(Forkable, Protocol):
    """What uses gRPC."""

    def pause(self) -> None:
        """Begins nothing new until `after_fork`."""

    @property
    def in_use(self) -> bool: ...
    def before_fork(self, until: float) -> bool:
        """Ends what is open. False if something goes on."""

    def after_fork(self) -> None:
        """In the parent."""


class CallGate:
    """Counts the threads that are inside gRPC with a call: `with gate:` around each. Any thread.

    A thread that comes back from gRPC after a fork, or when the interpreter has ended, crashes the
    process.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._paused = False
        # How many threads are inside.
        self.count = 0

    def __enter__(self) -> None:
        with self._changed:
            if self._paused:
                self._changed.wait_for(lambda: not self._paused)
            self.count += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self.count -= 1
            if not self.count:
                self._changed.notify_all()

    def pause(self) -> None:
        """Calls that begin wait until `resume`."""
        with self._changed:
            self._paused = True

    def resume(self) -> None:
        """Calls go on."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def wait_until_empty(self, until: float) -> bool:
        """Waits until no thread is inside. False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self.count, max(0.0, until - time.monotonic())
            )


class _State:
    """Of this process."""

    def __init__(self) -> None:
        self.things: dict[int, weakref.ref[Any]] = {}
        self.connections: dict[int, weakref.ref[Any]] = {}
        self.held: list[Lock] = []
        self.paused: list[Connection] = []
        self.clean = True
        self.refusal: FastiError | None = None


_state = _State()
# From before a fork until after it: several threads may fork, and what one has paused another would
# take for unused.
_one_fork = threading.Lock()


def register(thing: Forkable) -> None:
    """Has it told of forks, for as long as it lives. Any thread."""
    _keep(_state.things, thing)


def register_connection(connection: Connection) -> None:
    """The same for what uses gRPC."""
    _keep(_state.connections, connection)


def check() -> None:
    """Raises where nothing can be connected, because gRPC was in use at the fork."""
    if _state.refusal is not None:
        raise _state.refusal


def refused() -> bool:
    """Whether gRPC can't be used in this process."""
    return _state.refusal is not None


def leak(things: Iterable[Any]) -> None:
    """Where gRPC was in use at the fork: has its objects never end, for they would wait for ever."""
    if refused():
        for thing in things:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def made_before() -> IllegalTransition:
    """For what a child can't go on with."""
    return IllegalTransition(
        "it was made before this process was forked and belongs to the parent: make one here"
    )


def _keep(known: dict[int, weakref.ref[Any]], thing: Any) -> None:
    name = id(thing)
    known[name] = weakref.ref(thing, lambda _: known.pop(name, None))


def _alive(known: dict[int, weakref.ref[Any]]) -> list[Any]:
    return [thing for weak in list(known.values()) if (thing := weak()) is not None]


def _before() -> None:
    _one_fork.acquire()
    until = time.monotonic() + _PATIENCE_S
    _state.paused = _alive(_state.connections)
    # What is not in use is paused all the same, so that nothing begins until the fork is over.
    for connection in _state.paused:
        connection.pause()
    # Others of this process may use gRPC too: it is only waited for if we do.
    used = any(connection.in_use for connection in _state.paused)
    ended = [connection.before_fork(until) for connection in _state.paused]
    _state.clean = all(ended) and (not used or _grpc_ended(until))
    until = max(until, time.monotonic() + _LOCKS_S)
    for thing in _alive(_state.things):
        for lock in thing._fork_locks():
            if lock.acquire(timeout=max(0.0, until - time.monotonic())):
                _state.held.append(lock)


def _grpc_ended(until: float) -> bool:
    """Whether gRPC's threads are gone: it ends them behind its last connection."""
    if sys.platform != "linux":
        return False
    while _grpc_threads():
        if time.monotonic() >= until:
            return False
        time.sleep(_LOOK_S)
    return True


def _grpc_threads() -> list[str]:
    names = []
    for task in os.listdir("/proc/self/task"):
        with suppress(OSError), open(f"/proc/self/task/{task}/comm") as name:  # It has just ended.
            names.append(name.read().strip())
    return [name for name in names if name.startswith(_GRPC_THREADS)]


def _release() -> None:
    while _state.held:
        _state.held.pop().release()


def _after_in_parent() -> None:
    _release()
    try:
        for connection in _state.paused:
            connection.after_fork()
    finally:
        _state.paused = []
        _one_fork.release()


def _after_in_child() -> None:
    _release()
    _state.paused = []
    _one_fork.release()
    if not _state.clean:
        _state.refusal = IllegalTransition(
            "this process was forked while its parent's connections to Fasti were busy, which they "
            "don't survive: connect in the child alone, or start it by spawn instead of fork"
        )
    for thing in [*_alive(_state.connections), *_alive(_state.things)]:
        thing._forked()


# The hook that is registered last is called first before a fork. That of `logging` takes its lock, and
# what we wait for may wait to log: ours has to be called before it.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )
