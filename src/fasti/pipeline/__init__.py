"""Fasti's data pipeline: the change feed as bronze, silver and gold tables, on Spark.

And pipelines of one's own, from topics to topics and tables:

    from fasti.pipeline import Pipeline, changes, topic

Needs the extra `fasti[spark]`. The names are loaded when they are used, because the report needs no
Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fasti.pipeline.ends import Sink, Source, changes, kv, log, messages, table, topic
    from fasti.pipeline.user import Pipeline
    from fasti.pipeline.user_stage import StepRun

__all__ = [
    "Pipeline",
    "changes",
    "log",
    "messages",
    "kv",
    "table",
    "topic",
    "Source",
    "Sink",
    "StepRun",
]

_HOMES = {"Pipeline": "user", "StepRun": "user_stage"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'ends')}"), name)
