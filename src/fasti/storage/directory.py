"""The data directory of a broker, before it is opened: made, and closed to other users."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from fasti.storage.files import LocalFiles
from fasti.storage.safe_open import tighten

_log = logging.getLogger("fasti.storage")


def data_files(path: str | os.PathLike[str]) -> LocalFiles:
    """The files of a directory that a broker is about to use.

    Raises `PermissionDenied`, `StorageFull` or `StorageFailed` if it can't be made or looked at.
    """
    files = LocalFiles(path)
    warning = tighten(Path(path))
    if warning is not None:
        _log.warning("%s", warning)
    return files
