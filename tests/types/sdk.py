"""What the SDK's calls give and take, as type checkers see it. Checked, never run."""

from __future__ import annotations

from typing import assert_type

import fasti


def topics(client: fasti.Client) -> None:
    assert_type(client.create_topic("emails", lease="30s", max_attempts=5), fasti.Topic)
    client.create_topic("emails", kind="queue")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
