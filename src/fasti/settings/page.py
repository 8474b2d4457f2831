"""Settings written out: as a TOML file that gives the same settings again, and as docs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fasti.settings.cluster import NatsUrls, Weight
from fasti.settings.declared import SETTINGS, Setting
from fasti.settings.load import ServeSettings
from fasti.settings.values import Listen, Switch, WholeNumber


def as_toml(settings: ServeSettings) -> str:
    """The effective settings, each with where it came from."""
    return "\n".join(_lines(settings)) + "\n"


def _lines(settings: ServeSettings) -> Iterator[str]:
    section = ""
    for setting in SETTINGS:
        if setting.section != section:
            section = setting.section
            yield ""
            yield f"[{section}]"
        key = setting.key.rpartition(".")[2]
        value = settings.values[setting.key]
        if value is None and setting.default is None:
            yield f"# {key} is not set"
        else:
            yield f"{key} = {_literal(setting, value)}  # {settings.sources[setting.key]}"


def _literal(setting: Setting, value: Any) -> str:
    kind = setting.kind
    text = kind.hide(value) if isinstance(kind, NatsUrls) else kind.show(value)
    if isinstance(setting.kind, (WholeNumber, Weight, Switch)):
        return text
    # What JSON escapes, TOML's basic strings escape alike.
    return json.dumps(text, ensure_ascii=False)


def as_flags(values: Mapping[str, Any]) -> list[str]:
    """The values, by key, as flags of `fasti serve`; those that are the default are left out."""
    flags: list[str] = []
    for setting in SETTINGS:
        value = values[setting.key]
        if value == setting.default:
            continue
        if isinstance(setting.kind, Switch):
            flags += [setting.flag if value else f"--no-{setting.flag[2:]}"]
        elif value is not None or isinstance(setting.kind, Listen):
            flags += [setting.flag, setting.kind.show(value)]
    return flags


def as_table(settings: Sequence[Setting]) -> str:
    """Rows of Markdown: key, flag, variable, default, meaning."""
    rows = "".join(
        f"| `{setting.key}` | `{setting.flag}` | `{setting.variable}` "
        f"| {shown_default(setting)} | {setting.meaning} |\n"
        for setting in settings
    )
    return (
        f"| key | flag | environment | default | meaning |\n| --- | --- | --- | --- | --- |\n{rows}"
    )


def shown_default(setting: Setting) -> str:
    """The default as a person would write it, for the docs."""
    if setting.default is None:
        return "none" if setting.key != "http" else "`off`"
    return f"`{setting.kind.show(setting.default)}`"
