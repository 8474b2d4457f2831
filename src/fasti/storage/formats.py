"""How a file of another format is refused. Pure; any thread.

A version of Fasti reads the formats up to its own. Above them are those of newer releases, and of
versions from before the first release, when every format began again with 1.
"""

from __future__ import annotations

from typing import Any

from fasti.errors import NewerFormat


def check_format(what: str, found: int, supported: int, **details: Any) -> None:
    """Raises `NewerFormat` if this version can't read `what`, which names the file or its part."""
    if found > supported:
        raise NewerFormat(
            f"{what} has format {found}, which another version of Fasti wrote (a newer one, or one "
            f"from before the first release); this version reads up to {supported}: use the version "
            "that wrote it, or a backup that this version reads; nothing was changed",
            found=found,
            supported=supported,
            details=details,
        )
