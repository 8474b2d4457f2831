"""The code in the pages runs as it stands, against a broker in a process of its own.

A page's blocks run from top to bottom: Python in one process, the shell in between where it stands.
A block's output is compared with the `text` block that follows it at once, where … stands for
anything. In README each Python block is a program of its own, and where a page names the default
address, the test's broker is meant: nothing else is changed. A comment before a block says what
else may happen to it: `<!-- not run: why -->`, or `<!-- pytest -->` for a file of tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.client.address import DEFAULT_ADDRESS
from tests.integration.serve_rig import SEGMENTS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Has a test of its own, beside those of the commands.
ELSEWHERE = {DOCS / "guides" / "command-line.md"}
# Run in the Spark session that tests share, see tests/spark/test_pages.py.
ABOUT_SPARK = {
    page
    for page in (DOCS / "guides").glob("*.md")
    if re.search(
        r"^(import|from) (fasti\.spark|fasti\.pipeline|pyspark)", page.read_text(), re.MULTILINE
    )
}
PAGES = [
    ROOT / "README.md",
    DOCS / "embedding.md",
    *sorted(set((DOCS / "guides").glob("*.md")) - ELSEWHERE - ABOUT_SPARK),
]
FENCED = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?```(?P<language>python|sh|text)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MARKS = re.compile(r"not run: .+|pytest")
END = "\x1e"

# Runs the blocks that it finds on stdin, each followed by a mark on stdout.
RUNNER = """
import json, subprocess, sys
end = "\\x1e"
blocks = json.load(sys.stdin)
names = {"__name__": "__main__"}
for block in blocks:
    if block["language"] == "sh":
        subprocess.run(["bash", "-euo", "pipefail", "-c", block["code"]], check=True, stdin=-3)
    elif block["mark"] == "pytest":
        with open("test_page.py", "w") as file:
            file.write(block["code"])
        quiet = ["-q", "-p", "no:cacheprovider", "test_page.py"]
        subprocess.run([sys.executable, "-m", "pytest", *quiet], check=True, stdin=-3)
    else:
        if block["alone"]:
            names = {"__name__": "__main__"}
        code = "\\n" * (block["line"] - 1) + block["code"]
        exec(compile(code, block["page"], "exec"), names)
    print(end=end, flush=True)
"""


@dataclass
class Block:
    """A piece of a page that runs."""

    page: str
    line: int
    language: str
    mark: str
    code: str
    alone: bool
    output: str | None = None


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found: list[Block] = []
    last_end = -1
    for match in FENCED.finditer(text):
        language, mark = match["language"], match["mark"] or ""
        assert not mark or MARKS.fullmatch(mark), mark
        if language == "text":
            if found and text[last_end : match.start()].strip() == "":
                found[-1].output = match["code"]
        else:
            line = text.count("\n", 0, match.start("code")) + 1
            alone = page.name == "README.md"
            found.append(Block(page.name, line, language, mark, match["code"], alone))
        last_end = match.end()
    return [block for block in found if not block.mark.startswith("not run")]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings=SEGMENTS) as started:
        yield started


@pytest.fixture
def fresh(broker: BrokerProcess) -> BrokerProcess:
    """Without the topics that another page has made."""
    with fasti.connect(broker.address) as client:
        for topic in client.topics():
            client.delete_topic(topic.name)
    return broker


@pytest.mark.one_shard
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_runs_as_printed(page: Path, fresh: BrokerProcess, tmp_path: Path) -> None:
    blocks = blocks_of(page)
    assert blocks
    for block in blocks:
        block.code = block.code.replace(DEFAULT_ADDRESS, fresh.address)
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUNNER],
        input=json.dumps([asdict(block) for block in blocks]),
        env={**os.environ, "FASTI_ADDRESS": fresh.address, "PATH": path, "COLUMNS": "100"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    outputs = done.stdout.split(END)
    assert done.returncode == 0, f"{done.stderr}\nafter: {outputs[-2:]}"
    for block, printed in zip(blocks, outputs, strict=False):
        if block.output is not None:
            pattern = ".*".join(re.escape(part) for part in block.output.split("…"))
            where = f"{page.name}:{block.line} printed\n{printed}"
            assert re.fullmatch(pattern, printed), where


def test_the_runner_notices_a_wrong_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- not run: no -->\n```sh\nexit 1\n```\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n"
        "\nwords\n\n```text\nno output\n```\n"
    )
    (block,) = blocks_of(page)
    assert (block.line, block.language, block.output) == (7, "python", "1\n")
