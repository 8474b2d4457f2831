"""How other processes of an app, and command lines, reach its broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Reach:
    """What is to be used instead of what the app was made with; None leaves that as it is."""

    address: str | None = None
    # A secret, so it is not shown.
    token: str | None = field(default=None, repr=False)
    tls_ca: str | bytes | None = None

    def options(self) -> dict[str, Any]:
        """Arguments of `connect`, as far as they are known."""
        given = {"token": self.token, "tls_ca": self.tls_ca}
        return {name: value for name, value in given.items() if value is not None}
