"""The documentation is true: pages made from code are current, and links lead somewhere.

That the code in pages runs is tested in tests/integration/test_docs_snippets.py.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from xxhash import xxh64_hexdigest

import fasti
import fasti.aio
import fasti.pipeline
import fasti.spark
from fasti.broker import committer, faults, request
from fasti.broker.calls import intake
from fasti.broker.kv import reads, rings
from fasti.config import ShardSettings
from fasti.core import topic_settings
from fasti.core.columns import index
from fasti.core.delivery import turns, verbs
from fasti.core.journaled import EVENTS
from fasti.core.keys import Keys
from fasti.core.lifecycle import draw
from fasti.core.rows.arena import BYTES_PER_ROW, COLUMNS
from fasti.core.timeline import staging
from fasti.model import Limits, Outcome, RetryPolicy, TopicSettings
from fasti.storage import payloads
from fasti.storage.files import blocks as file_blocks
from fasti.storage.runs import ROW_SCHEMA

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), ROOT / "examples" / "README.md", *DOCS.rglob("*.md")]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # As when it is run: what lies beside it can be imported.
    sys.path.insert(0, str(DOCS))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(DOCS))
    return module


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def test_pages_made_from_code_are_current() -> None:
    for path, text in generator().pages():
        assert path.read_text() == text, f"{path.name} is out of date: run make docs"


def test_the_drawing_of_the_life_cycle_is_the_table() -> None:
    assert blocks(DOCS / "lifecycle.md", "mermaid") == [draw() + "\n"]


def test_the_reference_has_every_public_name() -> None:
    reference = generator().api_pages
    listed = {name for page in reference.PAGES for name in page.names}
    modules = {"aio", "errors", "model", "testing"}
    assert {f"fasti.{name}" for name in set(fasti.__all__) - modules - {"FastiError"}} <= listed
    assert {f"fasti.aio.{name}" for name in fasti.aio.__all__} <= listed
    assert {f"fasti.pipeline.{name}" for name in fasti.pipeline.__all__} <= listed
    assert {f"fasti.spark.{name}" for name in fasti.spark.__all__} <= listed
    for name, hidden in reference.INTERNAL.items():
        assert name in listed
        for member in hidden:
            assert hasattr(reference._find(name), member), f"{name}.{member}"


def test_every_setting_and_outcome_has_a_meaning() -> None:
    made = generator()
    for kind in (ShardSettings, TopicSettings, RetryPolicy, Limits):
        assert set(made.MEANINGS[kind.__name__]) == {each.name for each in fields(kind)}
    assert set(made.OUTCOMES) == set(Outcome)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(found), target


def test_every_page_can_be_found_from_the_index() -> None:
    found: set[Path] = set()
    waiting = [DOCS / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in found or not page.exists():
            continue
        found.add(page)
        if page.is_dir():
            waiting.extend(page.glob("*.md"))
        elif page.suffix == ".md":
            targets = re.findall(r"\]\(([^)\s#]+)", page.read_text())
            waiting.extend((page.parent / each).resolve() for each in targets if ":" not in each)
    assert set(DOCS.rglob("*.md")) <= found


def test_the_architecture_names_what_is_there() -> None:
    text = (DOCS / "architecture.md").read_text()
    source = ROOT / "src" / "fasti"
    packages = {each.name for each in source.iterdir() if (each / "__init__.py").exists()}
    named = re.findall(rf"`((?:{'|'.join(sorted(packages))})/[\w/]*(?:\.py)?)`", text)
    assert len(named) > 30
    assert [each for each in named if not (source / each).exists()] == []
    for package in packages:
        assert f"`fasti.{package}`" in text, package
    rooms = [each for name in ("core", "broker") for each in (source / name).iterdir()]
    for room in rooms:
        if (room / "__init__.py").exists():
            assert f"`{room.relative_to(source)}/`" in text, room


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


def test_the_hash_vectors_are_those_of_the_library_and_of_the_code() -> None:
    text = (DOCS / "protocol.md").read_text()
    vectors = re.findall(r"^\| `([^`]+)` \| ([0-9a-f]{16}) \| (\d+) \|$", text, re.MULTILINE)
    assert len(vectors) >= 4
    for key, hashed, partition in vectors:
        assert xxh64_hexdigest(key.encode()) == hashed
        assert int(hashed, 16) % 12 == int(partition)
        assert Keys(pa.array([key]), (0, 0)).partitions(12).tolist() == [int(partition)]


def test_formats_name_every_column_and_event() -> None:
    formats = (DOCS / "formats.md").read_text()
    for name in ROW_SCHEMA.names:
        assert f"`{name}`" in formats, name
    listed = dict(re.findall(r"^\| (\d+) \| `(\w+)` \|", formats, re.MULTILINE))
    assert listed == {str(code): kind.__name__ for code, kind in sorted(EVENTS.items())}


def test_the_memory_layout_is_that_of_the_code() -> None:
    text = (DOCS / "architecture.md").read_text()
    assert f"{BYTES_PER_ROW} bytes a row" in text
    for name in COLUMNS:
        assert f"| `{name}` |" in text, name


def test_figures_of_the_architecture_are_those_of_the_code() -> None:
    """What the page quotes of constants; a changed constant must be changed there too."""
    text = (DOCS / "architecture.md").read_text()
    steps, waiting = committer._STEPS_WAITING_MAX, mebibytes(committer._WAITING_BYTES_MAX)
    slot_bytes = 24
    low, high = slot_bytes / index._FULL, slot_bytes / index._REBUILT
    for quoted in (
        f"At most {steps} steps or {waiting} wait",
        f"| steps that wait for the disk | {steps}, or {waiting} |",
        f"up to about {mebibytes(committer._BYTES_PER_SYNC)}, writes them",
        f"whose deadline has passed (at most {verbs._EXPIRED_PER_STEP:,})",
        f"land in the calendar (at most {staging.LANDED_PER_STEP:,})",
        f"to waiting consumers (at most {turns.SERVED_PER_STEP:,})",
        f"| rows taken into a step | about {request._STEP_ROWS:,},",
        f"stops when {intake._BATCHES_MAX} batches or {mebibytes(intake._BYTES_MAX)} have",
        f"on their way, {payloads._BATCHES_MAX:,} decoded ones",
        f"| mapped blocks | {file_blocks._MAPS_MAX} kept |",
        f"| changes in a ring | {rings.ROWS_MAX:,} rows, {mebibytes(rings.BYTES_MAX)} of values |",
        f"{rings._IDLE_MAX} rings that nobody reads; {reads.ORDERS_MAX} orders",
        f"drop its engine | {faults._SUSPECTS_MAX:,} commands and topics",
        f"| entry in the key index | {low:.0f} to {high:.0f}, about {low + high:.0f} during",
        f"{slot_bytes} bytes a slot, filled {index._REBUILT * 100:.0f} to {index._FULL * 100:.0f} % |",
    ):
        assert quoted in text, quoted


def test_the_protocol_says_which_settings_stay() -> None:
    fixed = [f"`{name}`" for name in topic_settings.FIXED]
    names = f"{', '.join(fixed[:-1])} and {fixed[-1]} can't be changed"
    assert names in (DOCS / "protocol.md").read_text()


def mebibytes(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB"
