"""Payloads that look like users': bytes at random, which nothing makes smaller, and JSON, which LZ4 does."""

from __future__ import annotations

import json
from random import Random

KINDS = ("random", "json")
_WORDS = ("paid", "open", "sent", "late", "card", "bank", "gift", "none", "east", "west", "home")


def payloads(kind: str, count: int, size_bytes: int, seed: int = 7) -> list[bytes]:
    """So many, all different, of this length or a little more."""
    random = Random(seed)
    if kind == "random":
        return [random.randbytes(size_bytes) for _ in range(count)]
    return [_document(random, size_bytes) for _ in range(count)]


def _document(random: Random, size_bytes: int) -> bytes:
    """An order with as many lines as it takes."""
    head = json.dumps({"order": random.getrandbits(40), "customer": random.getrandbits(24)})
    lines: list[str] = []
    size = len(head)
    while size < size_bytes:
        line = {
            "article": random.getrandbits(20),
            "amount": random.randrange(1, 20),
            "price": round(random.uniform(1, 500), 2),
            "state": random.choice(_WORDS),
            "tags": random.sample(_WORDS, 2),
        }
        lines.append(json.dumps(line))
        size += len(lines[-1]) + 2
    return f'{head[:-1]}, "lines": [{", ".join(lines)}]}}'.encode()
