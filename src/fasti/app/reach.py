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
    # It has a key, so it is not shown.
    tls_client_cert: str | os.PathLike[str] | bytes | None = field(default=None, repr=False)

    def options(self) -> ConnectionOptions:
        """Arguments of `connect`, as far as they are known."""
        options: ConnectionOptions = {}
        if self.token is not None:
            options["token"] = self.token
        if self.tls_ca is not None:
            options["tls_ca"] = self.tls_ca
        if self.tls_client_cert is not None:
            options["tls_client_cert"] = self.tls_client_cert
        return options
