"""Finding an app, or a pipeline, by its name: `module:attribute`, as it is given to `fasti run`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any, TypeVar

from fasti.app import aio
from fasti.app.app import App
from fasti.errors import InvalidArgument

T = TypeVar("T")
Kinds = type[T] | tuple[type[Any], ...]


def load(reference: str) -> App:
    """The app that `fasti run` is given, for threads or for asyncio. See `found`."""
    reached: App | aio.App = load_object(reference, (App, aio.App), "app", "fasti.App")
    return reached if isinstance(reached, App) else reached.base


def load_object(reference: str, kind: Kinds[T], attribute: str, expected: str) -> T:
    """Imports the module, from the current directory too, and gives the object that it has.

    `module` alone means `module:attribute`; attributes may be nested: `shop.tasks:registry.app`.
    Raises `invalid_argument` that says what there is instead; what the module raises is raised as it
    is.
    """
    name, _, path = reference.partition(":")
    path = path or attribute
    if not name or name.endswith(".py") or os.sep in name:
        raise InvalidArgument(
            f"{reference!r} is not a module: write `package.module:{attribute}`, without .py",
            field=attribute,
        )
    reached: object = _module(name, attribute)
    for step in path.split("."):
        try:
            reached = getattr(reached, step)
        except AttributeError:
            raise InvalidArgument(
                f"module {name!r} has no {path!r}{_instead(name, kind)}", field=attribute
            ) from None
    if not isinstance(reached, kind):
        raise InvalidArgument(
            f"{reference!r} is not a {expected} but of type {type(reached).__name__}{_instead(name, kind)}",
            field=attribute,
        )
    return reached


def _module(name: str, field: str) -> object:
    if name in sys.modules:
        return sys.modules[name]
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(missing + "."):
            raise InvalidArgument(
                f"there is no module {name!r}: not in {here}, and not installed", field=field
            ) from None
        raise


def _instead(name: str, kind: Kinds[Any]) -> str:
    module = sys.modules.get(name)
    others = (
        [attribute for attribute, value in vars(module).items() if isinstance(value, kind)]
        if module
        else []
    )
    return f"; it has {', '.join(sorted(others))}" if others else ""
