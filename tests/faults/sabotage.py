"""Faults of the program itself, for a broker process that runs unchanged.

`Sabotage.environment` puts a module in the way of the interpreter's start which wraps the named functions.
Each behaves as always until a test names it in the control file: then its next call raises, once.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_MODULE = """
import importlib, os, sys

def wrap(place):
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner = importlib.import_module(module)
    for each in owners:
        owner = getattr(owner, each)
    real = getattr(owner, name)

    def wrapped(*given, **more):
        try:
            with open(CONTROL) as file:
                named = file.read()
        except OSError:
            named = ""
        if named == place:
            os.unlink(CONTROL)
            raise RuntimeError("sabotage of " + path)
        return real(*given, **more)

    setattr(owner, name, wrapped)

CONTROL = os.environ["FASTI_SABOTAGE"]
if "serve" in sys.orig_argv:
    for place in os.environ["FASTI_SABOTAGED"].split():
        wrap(place)
"""


class Sabotage:
    """The named functions (`package.module:Class.method`) of processes with this environment."""

    def __init__(self, directory: Path, *places: str) -> None:
        (directory / "sitecustomize.py").write_text(_MODULE)
        self._control = directory / "sabotage"
        self.places = places
        self.environment = {
            "PYTHONPATH": str(directory),
            "FASTI_SABOTAGE": str(self._control),
            "FASTI_SABOTAGED": " ".join(places),
        }

    def strike(self, place: str) -> None:
        """The next call raises."""
        assert place in self.places
        whole = self._control.with_suffix(".new")
        whole.write_text(place)
        os.replace(whole, self._control)

    def wait(self, within_s: float = 30.0) -> None:
        """Returns when it has raised."""
        until = time.monotonic() + within_s
        while self._control.exists():
            assert time.monotonic() < until, "nobody came by"
            time.sleep(0.005)
