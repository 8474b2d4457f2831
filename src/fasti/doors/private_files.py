"""Files that grant access: only their owner may read or change them."""

from __future__ import annotations

import stat
from pathlib import Path

from fasti.errors import PermissionDenied

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def check_private(path: Path) -> None:
    """Raises `permission_denied` if its group or others may read or write it.

    A file of root's may be read by its group: so it is where secrets are mounted for a service.
    """
    try:
        status = path.stat()
    except OSError:
        return  # The reader of the file says what is wrong.
    allowed = stat.S_IRGRP if status.st_uid == 0 else 0
    excess = stat.S_IMODE(status.st_mode) & _OTHERS & ~allowed
    if excess:
        verb = "change" if excess & (stat.S_IWGRP | stat.S_IWOTH) else "read"
        raise PermissionDenied(
            f"{path}: others may {verb} it (its mode is {stat.S_IMODE(status.st_mode):04o}): "
            f"run `chmod 600 {path}`",
            details={"file": str(path)},
        )
