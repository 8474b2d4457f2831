"""The cluster's machines decide; others do. So they import nothing that acts, waits or draws."""

import ast
from pathlib import Path

import pytest

import fasti.cluster

MACHINES = (
    "member_clocks", "member_records", "members", "pack_reader", "placement", "pointer_owner",
    "shard_claims", "writer", "writer_actions",
)  # fmt: skip
ALLOWED = {
    "__future__", "collections", "collections.abc", "dataclasses", "enum", "math", "statistics", "typing",
    "xxhash", *(f"fasti.cluster.{name}" for name in MACHINES),
}  # fmt: skip


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_imports_no_clock_no_io_and_no_randomness(name: str) -> None:
    path = Path(fasti.cluster.__path__[0]) / f"{name}.py"
    imports = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imports.add(node.module or "")
    assert imports <= ALLOWED
