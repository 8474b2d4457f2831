"""Payloads that look like users': bytes at random, which nothing makes smaller, and JSON, which LZ4 does."""

from __future__ import annotations

import json

import numpy as np

KINDS = ("random", "json")
_WORDS = ("paid", "open", "sent", "late", "card", "bank", "gift", "none", "east", "west", "home")


def payloads(kind: str, count: int, size_bytes: int, seed: int = 7) -> list[bytes]:
    """So many, all different, of this length or a little more."""
    random = np.random.default_rng(seed)
    if kind == "random":
        return [random.bytes(size_bytes) for _ in range(count)]
    return [_document(random, size_bytes) for _ in range(count)]


def _document(random: np.random.Generator, size_bytes: int) -> bytes:
    """An order with as many lines as it takes."""
    lines: list[dict[str, object]] = []
    order = {"order": int(random.integers(1 << 40)), "customer": int(random.integers(1 << 24))}
    while True:
        words = random.choice(_WORDS, 3)
        lines.append(
            {
                "article": int(random.integers(1 << 20)),
                "amount": int(random.integers(1, 20)),
                "price": round(float(random.uniform(1, 500)), 2),
                "state": str(words[0]),
                "tags": [str(word) for word in words[1:]],
            }
        )
        document = json.dumps({**order, "lines": lines}).encode()
        if len(document) >= size_bytes:
            return document
