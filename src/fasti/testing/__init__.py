"""The test kit: what Fasti is tested with, and what its users may test with.

    from fasti.testing import VirtualBroker

Or ask for the fixtures `fasti_broker` and `fasti_client` in a pytest test.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fasti.extras import required

if TYPE_CHECKING:
    from fasti.testing.idle import Run as Run
    from fasti.testing.virtual import VirtualBroker as VirtualBroker

_HOMES = {"Run": "fasti.testing.idle", "VirtualBroker": "fasti.testing.virtual"}

__all__ = ["Run", "VirtualBroker"]


def __getattr__(name: str) -> Any:
    # pytest imports this package with its plugins, in every project: only quickly.
    if name in _HOMES:
        with required("broker", "fasti.testing"):
            return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fasti.testing' has no attribute {name!r}")
