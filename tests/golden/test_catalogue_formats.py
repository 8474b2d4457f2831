"""What several shards added to the formats: events of the catalogue, and its part of the state block."""

from __future__ import annotations

from pathlib import Path

from fasti.core.capsule import Capsule, capture, restore
from fasti.core.catalogue.events import CatalogueFollowed, EntryChanged, EntryDropped
from fasti.core.engine import Engine
from fasti.core.events import Event, TopicCreated, TopicDeleted
from fasti.core.layout import ShardPlace
from fasti.core.replies import Frame
from fasti.storage.state_block import decode_state, encode_state
from tests.golden.bodies import AT_US, body_of, check_read, check_written, content_of, joined

BODY = Path(__file__).parent / "frame-body-catalogue"
STATE = Path(__file__).parent / "block-catalogue.state"


def frame() -> Frame:
    events: list[Event] = [
        EntryChanged(AT_US, 3, 7, 12),
        EntryDropped(AT_US, 5, 13),
        CatalogueFollowed(AT_US, 13),
    ]
    return Frame(5, events, None)


def engine() -> Engine:
    made = Engine(1 << 20, 16, place=ShardPlace(0, 2))
    for number, name in enumerate(("töpic", "gone", "last"), 1):
        made.replay(number, [TopicCreated(AT_US, number, name, {"partitions": 2})])
        made.replay(number + 10, [EntryChanged(AT_US, number, number, number)])
    made.replay(20, [TopicDeleted(AT_US, 2), EntryDropped(AT_US, 2, 4)])
    made.replay(21, [EntryChanged(AT_US, 1, 1, 5)])
    return made


def state() -> Capsule:
    """The part of it. That topics have more settings, or fewer, is no change of the format."""
    head = capture(engine().state).head
    topics = [[topic["number"], topic["catalogue"]] for topic in head["topics"]]
    return Capsule({"catalogue": head["catalogue"], "topics": topics}, {})


def written() -> dict[Path, bytes]:
    return {BODY: body_of(frame()), STATE: joined(encode_state(state()))}


def test_events_are_written_as_ever() -> None:
    check_written(frame(), BODY)


def test_events_are_read_as_ever() -> None:
    check_read(BODY, frame())


def test_the_state_is_written_as_ever() -> None:
    assert content_of(joined(encode_state(state()))) == content_of(STATE.read_bytes())


def test_the_state_is_read_as_ever() -> None:
    stored = decode_state(memoryview(STATE.read_bytes()), "block").head
    was, again = engine(), Engine(1 << 20, 16)
    capsule = capture(was.state)
    capsule.head["catalogue"] = stored["catalogue"]
    for topic, (number, catalogue) in zip(capsule.head["topics"], stored["topics"], strict=True):
        assert topic["number"] == number
        topic["catalogue"] = catalogue
    restore(again.state, capsule)
    assert list(again.state.catalogue.topics) == list(was.state.catalogue.topics) == [3, 1]
    assert list(again.state.catalogue.gone) == [(4, 2)]
    assert again.state.catalogue.version == 5
