"""Commands whose parameters are partly made by code: typer reads them off the signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

Command = Callable[..., None]


def parameters_of(command: Command) -> list[inspect.Parameter]:
    """Those of `command(client, ...)`; the client's type is for type checkers, and not loaded."""
    first = next(iter(inspect.signature(command).parameters))
    command.__annotations__.pop(first, None)
    return list(inspect.signature(command, eval_str=True).parameters.values())


def option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """A parameter that typer makes an option of."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, annotation=annotation, default=default)


def presented(run: Command, command: Command, parameters: Sequence[inspect.Parameter]) -> Command:
    """`run` under the name and with the help of `command`, but with these parameters, by name."""
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    run.__annotations__ = {
        parameter.name: parameter.annotation
        for parameter in parameters
        if parameter.annotation is not inspect.Parameter.empty
    }
    return run
