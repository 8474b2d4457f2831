"""Actions on key-value topics."""

from __future__ import annotations

from fasti.broker.parts import Action, PartOf

ACTIONS: dict[str, Action] = {}
TRANSACTION_PARTS: dict[str, PartOf] = {}
