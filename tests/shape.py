"""How many shards the brokers of tests have: one, or as many as `--shards N` says.

Tests make brokers in more than a hundred places, and most of them say nothing of shards: what they assert
holds for any number. With the option each new data directory that such a broker or embedded client makes
has N shards. What is about one shard by its nature (its files, its metrics, its place in a feed) is marked
`one_shard`, and left out then.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fasti.broker.launch import BrokerProcess
from fasti.client.shards import embedded


def use_shards(count: int) -> None:
    """From now on, in this process, brokers on new directories have so many shards."""
    begin, open_embedded = BrokerProcess.__init__, embedded.open_directory

    def begin_with_shards(self: BrokerProcess, data: Any, **options: Any) -> None:
        given: Mapping[str, Any] = options.get("settings") or {}
        said = "shards" in options or {"shards", "peers", "processes", "clone"} & given.keys()
        if not said and _is_new(Path(data)):
            options["shards"] = count
        begin(self, data, **options)

    def open_with_shards(directory: str, options: dict[str, Any], timeout_s: float) -> Any:
        if "shards" not in options and _is_new(Path(directory)):
            options["shards"] = count
        return open_embedded(directory, options, timeout_s)

    BrokerProcess.__init__ = begin_with_shards  # type: ignore[method-assign,assignment]
    embedded.open_directory = open_with_shards


def _is_new(directory: Path) -> bool:
    return not directory.exists() or not any(directory.iterdir())
