"""Opening: a replayed journal, read blocks, and both together lead to the same state."""

from __future__ import annotations

import numpy as np
import pytest

from fasti.core import events as ev
from fasti.core.replies import Frame
from fasti.errors import Corruption
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import Files
from fasti.storage.store import ShardStore
from fasti.testing.disk import SimulatedFiles
from tests.crash.shard_workload import SETTINGS, Driven, dump, moment, write_story


@pytest.mark.parametrize("seed", range(300, 303))
def test_with_and_without_checkpoints_the_same_is_read(seed: int) -> None:
    ops, sights = write_story(seed, 60, SimulatedFiles())
    last = moment(len(ops) - 1)
    replayed = []
    for kept in (True, False):
        files = SimulatedFiles()
        driven = Driven(files)
        for step, op in enumerate(ops):
            if kept or op[0] != "checkpoint":
                driven.do(op, moment(step))
            # Reading as the story was told groups hand-outs under tokens as it did.
            dump(driven.shard, moment(step))
        driven.shard.close()
        again = Driven(files)
        replayed.append(again.shard.replayed)
        assert dump(again.shard, last)["topics"] == sights[-1][1]["topics"]
    assert replayed[0] < replayed[1]


def append(files: Files, event: ev.Event) -> None:
    """An event that nobody decided."""
    store = ShardStore(FileStorage(files), SETTINGS)
    frame = Frame(store.journal.last_sequence + 1, [event], None)
    store.journal.append(store.encode([frame]))
    store.journal.sync()
    store.close()


@pytest.mark.parametrize(
    "event",
    [
        ev.TopicDeleted(moment(9), 77),
        ev.Acked(moment(9), 1, 0, np.array([1]), np.array([0])),
        ev.Cancelled(moment(9), 1, 5, np.array([1])),
        ev.Produced(moment(9), 1, 0, 500, "", "", np.array([0]), np.array([0])),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_journal_that_contradicts_itself_is_corruption(event: ev.Event) -> None:
    files = SimulatedFiles()
    write_story(1, 4, files)
    append(files, event)
    with pytest.raises(Corruption, match="contradicts") as caught:
        Driven(files)
    assert caught.value.details["file"] == "journal"
