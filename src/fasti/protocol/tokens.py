"""What a token looks like on the wire: checked by those who send one, and by those who get one."""

from __future__ import annotations

import re

from fasti.errors import Unauthenticated

CHARACTERS_MAX = 512
_TOKEN = re.compile(rf"[\x21-\x7e]{{1,{CHARACTERS_MAX}}}")


def check_token(token: str) -> str:
    """The token itself. Raises `unauthenticated` for what no broker could know, and never tells it."""
    if not _TOKEN.fullmatch(token):
        raise Unauthenticated(
            f"this is not a token: a token has 1 to {CHARACTERS_MAX} printable ASCII characters and no "
            "spaces, as `fasti token create` prints it"
        )
    return token
