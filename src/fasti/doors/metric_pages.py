"""Pages of metrics of several processes as one page of Prometheus' text format.

A family stands on it once, with the samples of all pages. A sample of a shard has its label `shard`, and
is there once; every other one is a process's, and gets the label `process`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# A quote inside a label's value is written with a backslash before it, so this is never inside one.
_OF_SHARD = re.compile(r'[{,]shard="')
_HELP, _COMMENT = "# HELP ", "#"


def merge_pages(pages: Mapping[int, str]) -> str:
    """One page of those of processes, by their numbers."""
    families: dict[str, list[str]] = {}
    for number, page in pages.items():
        label = f'process="{number}"'
        for name, comments, samples in _families(page):
            lines = families.get(name)
            if lines is None:
                lines = families[name] = comments
            lines += [_labelled(sample, label) for sample in samples]
    return "".join(f"{line}\n" for lines in families.values() for line in lines)


def _families(page: str) -> Iterable[tuple[str, list[str], list[str]]]:
    """The name, the lines of comment and the samples of each family of a page."""
    name, comments, samples = "", list[str](), list[str]()
    for line in page.splitlines():
        if line.startswith(_HELP):
            if name:
                yield name, comments, samples
            name, comments, samples = line.split(" ", 3)[2], [line], []
        elif line.startswith(_COMMENT):
            comments.append(line)
        elif line:
            samples.append(line)
    if name:
        yield name, comments, samples


def _labelled(sample: str, label: str) -> str:
    if _OF_SHARD.search(sample):
        return sample
    brace, space = sample.find("{"), sample.find(" ")
    if 0 <= brace < space:
        return f"{sample[: brace + 1]}{label},{sample[brace + 1 :]}"
    return f"{sample[:space]}{{{label}}}{sample[space:]}"
