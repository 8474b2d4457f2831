"""Groups of which one command is meant when none is named: `fasti consumers`, `fasti clock`."""

from __future__ import annotations

from typing import Any, ClassVar

from typer.core import TyperGroup


class _DefaultCommand(TyperGroup):
    default: ClassVar[str]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts the command in, unless one is named or help is asked for."""
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


def with_default(command: str) -> type[TyperGroup]:
    """The class of a group in which `command` may be left out."""
    return type("WithDefault", (_DefaultCommand,), {"default": command})
