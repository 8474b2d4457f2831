"""The manifest: which blocks count, and where the journal goes on from them.

It is a small JSON document that the block store switches atomically; everything that it names is
durable before. A manifest of another format is refused and nothing is touched.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from fasti.storage.blocks import BlockStore
from fasti.storage.formats import check_format
from fasti.storage.log_blocks import LogBlock
from fasti.storage.runs import Block, epoch_in

MANIFEST_DATA_VERSION = 1


@dataclass(slots=True)
class Manifest:
    """State as of frame `position`: the blocks, and the state block's name."""

    incarnation: int
    # The secret under which keys are hashed in this directory.
    seed: tuple[int, int]
    position: int = 0
    # Checkpoints so far; also the epoch that the last one closed.
    checkpoint: int = 0
    next_block: int = 1
    state_name: str = ""
    blocks: list[Block] = field(default_factory=list)
    logs: list[LogBlock] = field(default_factory=list)

    @classmethod
    def begin(cls, blocks: BlockStore) -> tuple[int, Manifest]:
        """The first manifest of a new shard, written; with its version."""
        manifest = cls(secrets.randbits(63), (secrets.randbits(64), secrets.randbits(64)))
        return blocks.switch_manifest(0, manifest.encode()), manifest

    @classmethod
    def read(cls, blocks: BlockStore) -> tuple[int, Manifest] | None:
        """The manifest that is in force, and its version; None before the first. Raises `NewerFormat`."""
        stored = blocks.read_manifest()
        return None if stored is None else (stored[0], cls.decode(stored[1]))

    @property
    def names(self) -> set[str]:
        """Every object that counts."""
        named = {name for block in self.blocks for name in block.names}
        named |= {block.name for block in self.logs}
        return named | ({self.state_name} if self.state_name else set())

    @property
    def payload_names(self) -> dict[int, str]:
        """What the payloads of each block are called."""
        runs = {block.number: block.payloads_name for block in self.blocks if not block.delta}
        return runs | {block.number: block.name for block in self.logs}

    def next_epoch(self, journal_epoch: int) -> int:
        """For a writer of blocks that does not open the journal: above all that wrote before."""
        return max(journal_epoch, *map(epoch_in, self.names), 0) + 1

    def encode(self) -> bytes:
        document: dict[str, Any] = {
            "format": MANIFEST_DATA_VERSION,
            "incarnation": str(self.incarnation),
            "seed": [str(part) for part in self.seed],
            "position": self.position,
            "checkpoint": self.checkpoint,
            "next_block": self.next_block,
            "state": self.state_name,
            "blocks": [block.to_dict() for block in self.blocks],
        }
        # A large log has a hundred thousand blocks: in pieces, so that other threads get a turn.
        logs = [block.to_list() for block in self.logs]
        pieces = [_dumped(logs[begin : begin + 1000])[1:-1] for begin in range(0, len(logs), 1000)]
        return f'{_dumped(document)[:-1]},"logs":[{",".join(pieces)}]}}'.encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        document = json.loads(data)
        check_format("the manifest", document["format"], MANIFEST_DATA_VERSION)
        first, last = document["seed"]
        return cls(
            int(document["incarnation"]),
            (int(first), int(last)),
            document["position"],
            document["checkpoint"],
            document["next_block"],
            document["state"],
            [Block.from_dict(values) for values in document["blocks"]],
            [LogBlock.from_list(values) for values in document["logs"]],
        )


def _dumped(values: Any) -> str:
    return json.dumps(values, separators=(",", ":"))
