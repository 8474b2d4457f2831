"""The test kit: what Fasti is tested with, and what its users may test with.

    from fasti.testing import VirtualBroker

Or ask for the fixtures `fasti_broker` and `fasti_client` in a pytest test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fasti.testing.virtual import VirtualBroker as VirtualBroker

__all__ = ["VirtualBroker"]


def __getattr__(name: str) -> Any:
    # pytest imports this package with its plugins, in every project: only quickly.
    if name == "VirtualBroker":
        from fasti.testing.virtual import VirtualBroker

        return VirtualBroker
    raise AttributeError(f"module 'fasti.testing' has no attribute {name!r}")
