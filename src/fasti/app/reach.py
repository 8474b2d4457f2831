"""How other processes of an app, and command lines, reach its broker."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fasti.client.arguments import ConnectionOptions


@dataclass(frozen=True, slots=True)
class Reach:
    """What is to be used instead of what the app was made with; None leaves that as it is."""

    address: str | None = None
    # A secret, so it is not shown.
    token: str | None = field(default=None, repr=False)
    tls_ca: str | os.PathLike[str] | bytes | None = None

    def options(self) -> ConnectionOptions:
        """Arguments of `connect`, as far as they are known."""
        options: ConnectionOptions = {}
        if self.token is not None:
            options["token"] = self.token
        if self.tls_ca is not None:
            options["tls_ca"] = self.tls_ca
        return options
