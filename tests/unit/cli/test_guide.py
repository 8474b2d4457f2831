"""The guide to the command line is true: its lines run, one after another."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.unit.cli.rig import Shell

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "command-line.md"


def test_the_lines_of_the_guide_run(bare_shell: Shell) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) > 15
    for line in lines:
        command, *arguments = shlex.split(line)
        assert command == "fasti"
        answer = bare_shell(*arguments)
        assert answer.code == 0, (line, answer)
