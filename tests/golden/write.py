"""Writes every golden file anew: ``python -m tests.golden.write``.

Only for a format that was changed on purpose and that no released version has written. From the first
release on a change raises the format version, and the old file stays and is read for ever.
"""

from __future__ import annotations

import importlib
from pathlib import Path

if __name__ == "__main__":
    for module in sorted(Path(__file__).parent.glob("test_*_formats.py")):
        for path, data in importlib.import_module(f"tests.golden.{module.stem}").written().items():
            path.write_bytes(data)
