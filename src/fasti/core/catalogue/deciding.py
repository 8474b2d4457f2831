"""Deciding what is asked of the catalogue.

Shard 0 decides every change of a topic as the only shard does, and notes with each that its entry has
changed (`note_changed`). Its pages go to the other shards, which carry out each in one step: whatever
breaks, a shard has a page whole or not at all, and its version says which comes next. A page is taken
only if it begins at the version that the shard has, so none is carried out twice, none is left out, and
an old one that comes late does no harm.

A page tells what topics are, not what was done to them: changes that came before the last one of each
are left out. So it may name targets of bindings that come with a later page, which is no fault: rows that
are routed to one that isn't there yet are refused.
"""

from __future__ import annotations

from collections.abc import Callable

from fasti.core import events as ev
from fasti.core.catalogue.commands import (
    CataloguePage,
    Entry,
    FollowCatalogue,
    ReadCatalogue,
    ReadCatalogueVersion,
)
from fasti.core.catalogue.events import CatalogueFollowed, EntryChanged, EntryDropped
from fasti.core.kind import Handler
from fasti.core.layout import OWN_TOPICS
from fasti.core.replies import Done
from fasti.core.state import Topic
from fasti.core.work import Work
from fasti.errors import InvalidArgument, WrongShard

CATALOGUE_SHARD = 0
# Of one page: topics, and bindings of which so many count as one topic.
PAGE_ENTRIES = 256
_BINDINGS_PER_ENTRY = 16
DeleteTopic = Callable[[Work, Topic], Done]


def require_catalogue(work: Work, name: str, own: bool = False) -> None:
    """Raises `wrong_shard` where a change of this topic is another shard's to decide.

    `own`: the topic is to be one that the shard makes for itself; so is one that is no entry.
    """
    place = work.state.place
    if place.count == 1 or place.number == CATALOGUE_SHARD or own:
        return
    known = work.state.by_name.get(name)
    if known is None and name in OWN_TOPICS:
        return
    if known is None or known.catalogue_number:
        raise WrongShard(
            f"topics are made, changed and deleted on shard {CATALOGUE_SHARD}",
            details={"topic": name, "shard": CATALOGUE_SHARD},
        )


def note_created(work: Work, topic: Topic) -> None:
    """A topic that is new becomes an entry."""
    place = work.state.place
    if place.count > 1 and place.number == CATALOGUE_SHARD:
        _emit_changed(work, topic, topic.number)


def note_changed(work: Work, topic: Topic) -> None:
    """A topic is not as it was: its settings, its bindings, or whether it rests."""
    if topic.catalogue_number and work.state.place.number == CATALOGUE_SHARD:
        _emit_changed(work, topic, topic.catalogue_number)


def note_deleted(work: Work, topic: Topic) -> None:
    """A topic was deleted."""
    if topic.catalogue_number and work.state.place.number == CATALOGUE_SHARD:
        version = work.state.catalogue.version + 1
        work.emit(EntryDropped(work.now_us, topic.catalogue_number, version))


def _emit_changed(work: Work, topic: Topic, number: int) -> None:
    version = work.state.catalogue.version + 1
    work.emit(EntryChanged(work.now_us, topic.number, number, version))


# Telling


def read_version(work: Work, query: ReadCatalogueVersion) -> Done:
    """The value is a number."""
    return Done(work.state.catalogue.version)


def read_catalogue(work: Work, query: ReadCatalogue) -> Done:
    """The value is a page."""
    place, book = work.state.place, work.state.catalogue
    if place.number != CATALOGUE_SHARD:
        raise WrongShard(
            f"the catalogue is on shard {CATALOGUE_SHARD}", details={"shard": CATALOGUE_SHARD}
        )
    if not 0 <= query.after <= book.version:
        # Never answered with what is here: topics that are whole elsewhere would be deleted.
        raise InvalidArgument(
            f"the catalogue has version {book.version}, and there is a shard with {query.after}: shard "
            f"{CATALOGUE_SHARD} was restored from an older backup than that one",
            field="after",
            limit=book.version,
        )
    behind: list[Topic] = []
    for topic in reversed(book.topics.values()):
        if topic.catalogue_version <= query.after:
            break
        behind.append(topic)
    behind.reverse()
    count = _fitting(behind)
    more = count < len(behind)
    version = behind[count - 1].catalogue_version if more else book.version
    page = CataloguePage(query.after, version, [_entry(topic) for topic in behind[:count]])
    page.more = more
    if query.after < book.gone_after:
        page.live = sorted(book.topics)
    else:
        page.gone = [number for gone, number in book.gone if query.after < gone <= version]
    return Done(page)


def _fitting(topics: list[Topic]) -> int:
    """How many of these topics fit a page: at least one."""
    size = 0
    for count, topic in enumerate(topics):
        size += 1 + len(topic.bindings) // _BINDINGS_PER_ENTRY
        if size > PAGE_ENTRIES and count:
            return count
    return len(topics)


def _entry(topic: Topic) -> Entry:
    return Entry(
        topic.catalogue_number,
        topic.catalogue_version,
        topic.name,
        topic.settings,
        topic.paused,
        list(topic.bindings),
    )


# Following


def follow(work: Work, command: FollowCatalogue, delete: DeleteTopic) -> Done:
    """Carries a page out. `delete` deletes a topic with all that it has in sessions and elsewhere."""
    page, book = command.page, work.state.catalogue
    if work.state.place.number == CATALOGUE_SHARD:
        raise InvalidArgument(f"shard {CATALOGUE_SHARD} follows nobody", field="page")
    if page.after != book.version or page.after == page.version:
        return Done(book.version)
    for topic in _leaving(work, page):
        delete(work, topic)
    for entry in page.entries:
        _make_so(work, entry)
    work.emit(CatalogueFollowed(work.now_us, page.version))
    return Done(page.version)


def _leaving(work: Work, page: CataloguePage) -> list[Topic]:
    """Topics that are gone, and those that stand in the way of one that is new."""
    state, book = work.state, work.state.catalogue
    if page.live is None:
        gone = {number for number in page.gone if number in book.topics}
    else:
        gone = set(book.topics).difference(page.live)
    leaving = {book.topics[number].number: book.topics[number] for number in sorted(gone)}
    for entry in page.entries:
        for topic in (state.by_name.get(entry.name), book.topics.get(entry.number)):
            if topic is not None and not _is_same(topic, entry):
                leaving[topic.number] = topic
    return list(leaving.values())


def _is_same(topic: Topic, entry: Entry) -> bool:
    return (topic.name, topic.catalogue_number) == (entry.name, entry.number)


def _make_so(work: Work, entry: Entry) -> None:
    state, now_us = work.state, work.now_us
    topic = state.by_name.get(entry.name)
    if topic is None:
        number = state.next_topic
        work.emit(ev.TopicCreated(now_us, number, entry.name, entry.settings.to_dict()))
        topic = state.topics[number]
    elif topic.settings != entry.settings:
        work.emit(ev.TopicChanged(now_us, topic.number, entry.settings.to_dict()))
    if topic.paused != entry.paused:
        work.emit(ev.TopicPaused(now_us, topic.number, int(entry.paused)))
    if topic.bindings != entry.bindings:
        pairs = [list(pair) for pair in entry.bindings]
        # The frame's number, as where bindings are decided.
        work.emit(ev.BindingsChanged(now_us, topic.number, state.next_frame, pairs))
    work.emit(EntryChanged(now_us, topic.number, entry.number, entry.version))


HANDLERS: dict[type, Handler] = {
    ReadCatalogue: read_catalogue,
    ReadCatalogueVersion: read_version,
}
