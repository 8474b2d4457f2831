"""An app at the top of a module, with a handler that runs in processes."""

from __future__ import annotations

import fasti

app = fasti.App("fasti://127.0.0.1:1", owner="tests")


@app.on("squares", kind="processes")
def square(number: int) -> int:
    return number * number
