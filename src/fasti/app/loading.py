"""Finding an app by its name: `module:attribute`, as it is given to `fasti run`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

from fasti.app.app import App
from fasti.errors import InvalidArgument

DEFAULT_ATTRIBUTE = "app"


def load(reference: str) -> App:
    """Imports the module, from the current directory too, and gives the app that it has.

    `module` alone means `module:app`; attributes may be nested: `shop.tasks:registry.app`. Raises
    `invalid_argument` that says what there is instead; what the module raises is raised as it is.
    """
    name, _, path = reference.partition(":")
    path = path or DEFAULT_ATTRIBUTE
    if not name or name.endswith(".py") or os.sep in name:
        raise InvalidArgument(
            f"{reference!r} is no module: write `package.module:app`, without .py", field="app"
        )
    found: object = _module(name)
    for step in path.split("."):
        try:
            found = getattr(found, step)
        except AttributeError:
            raise InvalidArgument(
                f"module {name!r} has no {path!r}{_instead(name)}", field="app"
            ) from None
    if not isinstance(found, App):
        raise InvalidArgument(
            f"{reference!r} is no fasti.App but {type(found).__name__}{_instead(name)}", field="app"
        )
    return found


def _module(name: str) -> object:
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
                f"there is no module {name!r}: not in {here}, and not installed", field="app"
            ) from None
        raise


def _instead(name: str) -> str:
    module = sys.modules.get(name)
    apps = (
        [each for each, value in vars(module).items() if isinstance(value, App)] if module else []
    )
    return f"; it has {', '.join(sorted(apps))}" if apps else ""
