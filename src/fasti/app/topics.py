"""The topic behind a handler: made if it is missing, and given the handler's retry policy.

How long a failed message waits, and how often it is tried, the broker decides by the topic's
settings, so that it holds however the attempt ended: by a nack, or by a worker that was never heard of
again. Thus `retry` and `max_attempts` of a handler are settings of its topic. The code that was
deployed last declares them: where the topic has others they are changed, and that is logged. All
other settings are only for a topic that is missing; where they differ a warning says so.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from fasti.app.handler import HandlerSettings
from fasti.client.client import Client
from fasti.client.topics import check_consumable, given_settings
from fasti.core.topic_settings import check_settings
from fasti.errors import AlreadyExists, NotFound
from fasti.model import TopicSettings

logger = logging.getLogger("fasti.app")


def ensure_topic(client: Client, settings: HandlerSettings) -> None:
    """Makes or changes the topic as the handler asks, and the group of a log's handler.

    With `create=False` it only looks at the topic. Raises `not_found` then, if it is missing, and
    what the broker refuses.
    """
    _ensure_topic(client, settings)
    if settings.group is not None:
        # As its first consumer would; but what is sent from now on is known to wait for it.
        with suppress(AlreadyExists):
            client.groups(settings.topic).create(settings.group)


def check_topic(client: Client, settings: HandlerSettings) -> None:
    """What `ensure_topic` would be refused, before anything is made or changed for any handler.

    Raises `not_found`, and `invalid_argument` for settings that can't be and for a topic of a kind
    that has nothing to handle.
    """
    name = settings.topic
    declared, others = _topic_settings(settings)
    try:
        current, wanted_settings = client.topic(name).settings, declared
    except NotFound:
        if settings.create is False:
            raise _missing(name) from None
        current, wanted_settings = TopicSettings(), {**others, **declared}
    if settings.create is not False:
        current = TopicSettings.from_dict({**current.to_dict(), **given_settings(wanted_settings)})
        check_settings(current, client.limits)
    check_consumable(name, current.kind, settings.group or "")


def _missing(name: str) -> NotFound:
    return NotFound(f"there is no topic {name!r}, and its handler was declared with create=False")


def _topic_settings(settings: HandlerSettings) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the handler declares for its topic, and the other settings of a topic that is missing."""
    policy = {"retry": settings.retry, "max_attempts": settings.max_attempts}
    declared = {key: value for key, value in policy.items() if value is not None}
    others = dict(settings.create) if isinstance(settings.create, Mapping) else {}
    if settings.group is not None:
        # Only logs have groups.
        others = {"kind": "log"} | others
    return declared, others


def _ensure_topic(client: Client, settings: HandlerSettings) -> None:
    name = settings.topic
    declared, others = _topic_settings(settings)
    try:
        topic = client.topic(name)
    except NotFound:
        if settings.create is False:
            raise _missing(name) from None
        client.create_topic(name, **{**others, **declared})
        logger.info("topic %r was created", name)
        return
    current = topic.settings.to_dict()
    changed = _differences(current, declared)
    if changed and settings.create is not False:
        client.change_topic(name, **declared)
        logger.warning(
            "topic %r was changed to what its handler asks for: %s", name, _described(changed)
        )
    elif changed:
        logger.warning(
            "topic %r has other settings than its handler asks for: %s", name, _described(changed)
        )
    if differing := _differences(current, others):
        logger.warning("topic %r was created with other settings: %s", name, _described(differing))


def _differences(current: dict[str, Any], settings: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    wire = given_settings(settings)
    return {name: (current[name], value) for name, value in wire.items() if current[name] != value}


def _described(differing: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name}: {has} (asked: {asked})" for name, (has, asked) in differing.items())
