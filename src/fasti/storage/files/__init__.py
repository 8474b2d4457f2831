"""Storage in files: the journal in segments, a file for each block, and what a data directory has besides.

All of it stands on `Files`, the only door to the disk (disk.py).
"""

from fasti.storage.files.disk import (
    LOCK_NAME,
    File,
    Files,
    LocalFiles,
    Lock,
    checked_name,
    folder_of,
    read_whole,
    replace_by_rename,
    size_of,
    translated,
)

__all__ = [
    "File",
    "Files",
    "LOCK_NAME",
    "LocalFiles",
    "Lock",
    "checked_name",
    "folder_of",
    "read_whole",
    "replace_by_rename",
    "size_of",
    "translated",
]
