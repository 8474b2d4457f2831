"""What the tests of several shards share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fasti.broker.host import Host
from fasti.config import ShardSettings
from fasti.storage.directory import shard_storages

SETTINGS = ShardSettings(segment_bytes=1 << 18, memory_bytes=64 << 20, leases_max=4096)


def open_host(path: Path, shards: int | None = None, **options: Any) -> Host:
    """A host of a directory's shards in this process."""
    folders, storages = shard_storages(path, shards, options.pop("numbers", None))
    return Host(storages, SETTINGS, shards=folders.shards, cluster=folders.cluster, **options)


def close_host(host: Host) -> None:
    """As a broker's process ends."""
    host.begin_stopping()
    host.close_services()
    host.close()
