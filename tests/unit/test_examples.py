"""The examples run as they are, and say what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPECTED = {
    "reminders.py": """\
move tea: ok
cancel bins: ok
cancel gym: not_found
reminder: call
reminder: bed
reminder: tea
cancel call afterwards: done
""",
    "retries.py": """\
flaky: attempt 1 failed: try again
broken: attempt 1 failed: no such address
flaky: attempt 2 worked
broken: attempt 2 failed: no such address
broken: attempt 3 failed: no such address
dead: 1
broken: attempt 1 worked
done: 2
""",
    "debounce.py": """\
typed 'D': ok, version 1
typed 'Dr': ok, version 2
typed 'Dra': ok, version 3
typed 'Draft': ok, version 4
pending: 1
indexed: [b'Draft']
anything else: None
""",
}


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_example_says_what_it_should(name: str) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == EXPECTED[name]
