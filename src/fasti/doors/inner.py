"""The way in for the broker's own HTTP process, where clients need certificates.

That process has none, and must not need one: it comes in by a Unix socket in a directory that only this
user can enter. It shows its token there as anywhere.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from fasti.broker.host import Host
from fasti.broker.service import Service
from fasti.doors.flight import Credentials, FlightDoor


class InnerDoor:
    """A socket and its directory. For one thread."""

    def __init__(self, service: Service | Host, credentials: Credentials | None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="fasti-"))
        self.path = str(self._folder / "broker.sock")
        try:
            self._door = FlightDoor(service, self.path, credentials=credentials)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def stop(self) -> None:
        """Ends it, and takes the directory away."""
        self._door.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
