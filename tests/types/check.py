"""Checks the public types as their users do: with mypy --strict and with pyright's strict mode.

    python -m tests.types.check

Two kinds of code are checked. The modules beside this file say with `assert_type` what the SDK's
calls give, and with `type: ignore` (which must not be unused) what is refused. And every Python
block of README and of the guides: what we print, people paste. basedpyright stands in for pyright,
because it comes whole from the Python registry, where pyright fetches itself from elsewhere.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.integration.test_docs_snippets import DOCS, FENCED, ROOT

HERE = Path(__file__).parent
WORK = ROOT / ".cache" / "types"
PAGES = [ROOT / "README.md", DOCS / "embedding.md", *sorted((DOCS / "guides").glob("*.md"))]

# Untyped packages: what comes out of them is unknown, to our users too. `reportDuplicateImport`
# because blocks of a page may each import what they need.
_PYRIGHT_PAGES = {
    "typeCheckingMode": "strict",
    "reportUnknownMemberType": False,
    "reportUnknownArgumentType": False,
    "reportUnknownVariableType": False,
    "reportMissingTypeStubs": False,
    "reportDuplicateImport": False,
    # mypy tells of modules that are missing; these two are of the readers' own choice.
    "reportMissingImports": False,
}
_PYRIGHT_SDK = {"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": True}
_MYPY = """
[mypy]
strict = true
python_version = 3.11
allow_redefinition = true
local_partial_types = true
cache_dir = {cache}
[mypy-pyarrow.*,pandas.*,polars.*,duckdb.*,deltalake.*]
ignore_missing_imports = true
"""


def write_pages(folder: Path) -> dict[str, Path]:
    """The blocks of each page as a module, on the lines that they have in the page."""
    written: dict[str, Path] = {}
    for page in PAGES:
        text = page.read_text()
        modules: dict[str, str] = {}
        stem = re.sub(r"\W", "_", page.relative_to(ROOT).with_suffix("").as_posix())
        for number, match in enumerate(FENCED.finditer(text)):
            if match["language"] != "python" or "not checked" in (match["mark"] or ""):
                continue
            # In README each block is a program of its own, and so is a file of tests.
            alone = page.name == "README.md" or match["mark"] == "pytest"
            name = f"{stem}_{number}" if alone else stem
            line = text.count("\n", 0, match.start("code"))
            before = modules.get(name, "")
            modules[name] = before + "\n" * (line - before.count("\n")) + match["code"]
        for name, code in modules.items():
            (folder / f"{name}.py").write_text(code)
            written[f"{name}.py"] = page
    return written


def run(command: list[str], names: dict[str, Path]) -> bool:
    """Runs a checker and prints what it found, by the names that people know; whether nothing."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        text = done.stdout + done.stderr
        for name, page in names.items():
            text = text.replace(str(WORK / "pages" / name), str(page.relative_to(ROOT)))
            text = text.replace(f".cache/types/pages/{name}", str(page.relative_to(ROOT)))
        print(text)
    return done.returncode == 0


def main() -> int:
    """The exit code."""
    folder = WORK / "pages"
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.py"):
        stale.unlink()
    names = write_pages(folder)
    (WORK / "mypy.ini").write_text(_MYPY.format(cache=WORK / "mypy"))
    mypy = [sys.executable, "-m", "mypy", "--config-file", str(WORK / "mypy.ini")]
    sdk = sorted(str(path) for path in HERE.glob("sdk*.py"))
    good = run([*mypy, *(str(folder / name) for name in names)], names)
    good &= run([*mypy, *sdk], {})
    for kind, rules, files in (
        ("pages", _PYRIGHT_PAGES, [str(folder)]),
        ("sdk", _PYRIGHT_SDK, sdk),
    ):
        environment = {"pythonVersion": "3.11", "venvPath": str(ROOT), "venv": ".venv"}
        config = WORK / f"pyright-{kind}.json"
        config.write_text(json.dumps({**environment, **rules, "include": files}))
        good &= run([sys.executable, "-m", "basedpyright", "-p", str(config)], names)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
