"""Commands whose parameters are partly made by code: typer reads them off the signature.

All arguments are passed by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

Command = Callable[..., None]


def parameters_of(command: Command) -> list[inspect.Parameter]:
    """What the command takes, with types instead of their names."""
    return list(inspect.signature(command, eval_str=True).parameters.values())


def option(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """A parameter that typer makes an option of."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, annotation=annotation, default=default)


def with_options(
    name: str, options: Sequence[inspect.Parameter], make: Callable[..., Any] = dict
) -> Callable[[Command], Command]:
    """Gives a command these options in place of its parameter `name`, which is made of their values."""
    names = [parameter.name for parameter in options]

    def decorate(command: Command) -> Command:
        def run(**values: Any) -> None:
            made = make(**{option: values.pop(option) for option in names})
            command(**{name: made}, **values)

        own = parameters_of(command)
        place = [parameter.name for parameter in own].index(name)
        return presented(run, command, [*own[:place], *options, *own[place + 1 :]])

    return decorate


def presented(run: Command, command: Command, parameters: Sequence[inspect.Parameter]) -> Command:
    """`run` under the name and with the help of `command`, but with these parameters, by name."""
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run
