"""An embedded broker takes its settings where it is opened."""

import asyncio
from concurrent.futures import Future
from pathlib import Path

import pytest

import fasti
import fasti.aio
from fasti.errors import InvalidArgument, TimedOut
from fasti.testing import VirtualBroker


def test_settings_are_given_by_name(tmp_path: Path) -> None:
    options = {"durability": "interval", "segment_bytes": 1 << 20}
    with fasti.connect(f"embedded:{tmp_path}", **options) as client:
        client.create_topic("t", lease="5s")
        assert client.producer("t").send(b"x", delay="1h").result(60).status == "ok"
        assert str(tmp_path) in repr(client)
        with pytest.raises(fasti.errors.TopicMismatch, match="lease_us is 5000000, not 9000000"):
            client.create_topic("t", lease="9s")
    held = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    assert held < (10 << 20) * client.transport.shard_count


@pytest.mark.parametrize("wrong", [{"colour": "red"}, {"durability": "sometimes"}])
def test_what_is_no_setting_is_refused_by_name(tmp_path: Path, wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        fasti.connect(f"embedded:{tmp_path}", **wrong)
    assert refused.value.field == next(iter(wrong))


def test_a_checkpoint_obeys_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    with VirtualBroker() as broker:
        client = broker.client()
        client.checkpoint(timeout="60s")
        with monkeypatch.context() as patch:
            patch.setattr(broker.shard.housekeeper, "checkpoint_now", Future)
            with pytest.raises(TimedOut, match="goes on"):
                client.checkpoint(timeout="10ms")

            async def later() -> None:
                async with fasti.aio.Client(client) as waiting:
                    with pytest.raises(TimedOut, match="goes on"):
                        await waiting.checkpoint(timeout="10ms")

            asyncio.run(later())
