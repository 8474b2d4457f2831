"""Readiness: work gets done, and where it doesn't the reason is told."""

from __future__ import annotations

import pytest

from fasti.broker import health
from fasti.broker.metrics.counts import Metrics
from fasti.broker.placement import OneShard
from fasti.broker.service import Service
from fasti.errors import OutcomeUnknown, StorageFailed
from fasti.storage.files.journal import FileJournal
from tests.integration.shard_rig import (
    FakeClock,
    SharedFiles,
    held_up,
    make_topic,
    produce,
    serving,
)


def test_a_shard_that_fails_again_and_again_is_not_ready_until_something_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StorageFailed("a bad sector")

    with serving(SharedFiles(), clock=FakeClock()) as shard:
        service = Service(OneShard(shard), Metrics())
        make_topic(shard)
        assert health.report(service) == {"ready": True, "state": "serving"}
        with monkeypatch.context() as patch:
            patch.setattr(FileJournal, "append", fail)
            for _ in range(2):
                with pytest.raises(OutcomeUnknown):
                    produce(shard, b"lost")
        # Opened again, and an empty step comes back; but nothing has been written since.
        shard.submit([]).result(60)
        assert health.report(service)["reason"] == "recovering"
        produce(shard, b"kept")
        assert health.report(service) == {"ready": True, "state": "serving"}
        service.close()


def test_a_step_that_does_not_come_back_is_asked_for_once() -> None:
    with serving(SharedFiles(), clock=FakeClock()) as shard:
        service = Service(OneShard(shard), Metrics())
        with held_up(shard):
            assert not any(shard.pulse.beats(0.01) for _ in range(5))
            assert len(shard.sequencer._urgent) == 1
        assert shard.pulse.beats(60)
        assert health.report(service)["ready"]
        service.close()
