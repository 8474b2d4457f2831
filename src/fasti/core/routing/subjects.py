"""Subjects and the patterns that fit them: the grammar alone, as pure functions.

A subject is words with dots between them: `orders.eu.created`. A pattern is the same, where `*`
stands for any one word and `>`, as the last one, for one or more. `>` alone fits every message, also
one without a subject. A word has no white space, no control character, no dot, and neither of the
two signs.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from fasti.errors import InvalidArgument

SUBJECT_BYTES_MAX = 255
EVERYTHING = ">"
ANY_WORD = "*"
_WORD = r"[^.*>\s\x00-\x1f\x7f]+"
# The same grammar twice: Arrow's expressions for columns, Python's for one pattern.
_SUBJECT = r"^[^.*>\s\pC\pZ]+(\.[^.*>\s\pC\pZ]+)*$"
_PATTERN = re.compile(rf"(?:(?:{_WORD}|\*)\.)*(?:{_WORD}|\*|>)")


def check_subjects(column: pa.Array) -> None:
    """Raises `invalid_argument` if a subject is none; null is fine."""
    distinct = column.unique().drop_null()
    if not len(distinct):
        return
    if pc.max(pc.binary_length(distinct)).as_py() > SUBJECT_BYTES_MAX:
        raise InvalidArgument(
            f"a subject has more than {SUBJECT_BYTES_MAX} bytes",
            field="subject",
            limit=SUBJECT_BYTES_MAX,
        )
    good = pc.match_substring_regex(distinct, _SUBJECT)
    if not pc.all(good).as_py():
        bad = distinct.filter(pc.invert(good))[0].as_py()
        raise InvalidArgument(
            f"a subject is words with dots between them, such as orders.eu.created, not {bad!r}",
            field="subject",
        )


def check_pattern(pattern: str) -> None:
    """Raises `invalid_argument` if it is no pattern."""
    if len(pattern.encode()) > SUBJECT_BYTES_MAX:
        raise InvalidArgument(
            f"a pattern has more than {SUBJECT_BYTES_MAX} bytes",
            field="pattern",
            limit=SUBJECT_BYTES_MAX,
        )
    if not pattern.isprintable() or not _PATTERN.fullmatch(pattern):
        raise InvalidArgument(
            "a pattern is words with dots between them, of which * stands for any one and > at the "
            f"end for one or more, such as orders.*.created or orders.>, not {pattern!r}",
            field="pattern",
        )
