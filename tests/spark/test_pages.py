"""The code in the pages about Spark runs as it stands, in the session that all tests share.

As in tests/integration/test_docs_snippets.py a page's blocks run from top to bottom, and what a block
prints is compared with the `text` block that follows it at once, where … stands for anything. The
broker is a real one; a page that names the default address means it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from fasti.broker.launch import BrokerProcess
from fasti.client.address import DEFAULT_ADDRESS
from tests.integration.serve_rig import SEGMENTS
from tests.integration.test_docs_snippets import ABOUT_SPARK, DOCS, ROOT, Block, blocks_of

PAGES = [*sorted(ABOUT_SPARK), *sorted((DOCS / "cookbook").glob("*.md"))]
# Only a list of the others.
NOT_RUN = {DOCS / "cookbook" / "README.md"}


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for one page: the feed remembers what other pages have made and deleted."""
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings=SEGMENTS) as started:
        yield started


@pytest.mark.one_shard
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in NOT_RUN], ids=lambda page: page.stem
)
def test_a_page_runs_as_printed(
    page: Path,
    spark: SparkSession,
    fresh: BrokerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocks = blocks_of(page)
    assert blocks
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    for name, value in {"FASTI_ADDRESS": fresh.address, "PATH": path, "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = ModuleType("__main__")
    for block in blocks:
        printed = run_block(block, module, fresh)
        if block.output is not None:
            pattern = ".*".join(re.escape(part) for part in block.output.split("…"))
            where = f"{page.relative_to(ROOT)}:{block.line} printed\n{printed}"
            assert re.fullmatch(pattern, printed, re.DOTALL), where
    assert not spark.streams.active


def run_block(block: Block, module: ModuleType, broker: BrokerProcess) -> str:
    """What it prints."""
    code = block.code.replace(DEFAULT_ADDRESS, broker.address)
    code = code.replace("127.0.0.1:7170", f"{broker.host}:{broker.port}")
    if block.mark == "pytest":
        Path("test_page.py").write_text(code)
        # A session of its own would take half a minute: its tests need none.
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"]
        subprocess.run(command, check=True)
        return ""
    if block.language == "sh":
        command = ["bash", "-euo", "pipefail", "-c", code]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout
    out = io.StringIO()
    compiled = compile("\n" * (block.line - 1) + code, block.page, "exec")
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        # Spark warns of what it does itself.
        warnings.simplefilter("ignore")
        exec(compiled, module.__dict__)
    return out.getvalue()
