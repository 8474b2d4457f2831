"""A broker inside this process, with as many shards as its directory has."""

from __future__ import annotations

from typing import Any

from fasti.client.embedded_transport import open_embedded, open_shards
from fasti.client.shards.transport import ShardedTransport
from fasti.client.transport import Header, Transport
from fasti.errors import InvalidArgument
from fasti.storage.shard_folders import read_folders


def open_directory(
    directory: str, options: dict[str, Any], timeout_s: float
) -> tuple[Transport, Header]:
    """Opens the broker of a directory, for `connect` with its options: the way to it, and its `hello`.

    Raises what `connect` does.
    """
    shards = options.get("shards")
    if shards is not None and type(shards) is not int:
        raise InvalidArgument("shards must be a whole number", field="shards")
    if shards in (None, 1) and read_folders(directory).shards == 1:
        options.pop("shards", None)
        transport = open_embedded(directory, options, timeout_s)
        return transport, transport.call("hello")[0]
    ways, hello, close = open_shards(directory, options, timeout_s)
    # They have one clock: that of the process.
    whole = ShardedTransport(ways, clock=ways[0].clock, name=f"embedded:{directory}", close=close)
    return whole, hello
