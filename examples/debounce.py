"""Debounce: act once a document has been quiet for a while, however often it changes before.

Each change replaces the pending message of its key and puts its due time off, so that there is
never more than one, and it holds the last state.

    python examples/debounce.py
"""

import tempfile
import time

import numpy as np

from fasti.broker.shard import Shard
from fasti.core.commands import Ack, Count, CreateTopic, Produce, When
from fasti.core.keys import Rows
from fasti.model import OnConflict
from fasti.storage.files import LocalFiles

QUIET_US = 200_000


def changed(shard: Shard, document: str, text: str) -> str:
    """A document changed: index it when it has been quiet."""
    rows = Rows.of([text.encode()], key=[document])
    keys = rows.keys(shard.store.seed)
    command = Produce(
        "index", rows, When(delay_us=QUIET_US), keys=keys, on_conflict=OnConflict.REPLACE
    )
    reply = shard.call(command)
    return f"{reply.outcome().word}, version {reply.versions[0]}"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        shard = Shard(LocalFiles(directory))
        shard.call(CreateTopic("index"))
        for text in ("D", "Dr", "Dra", "Draft"):
            print(f"typed {text!r}: {changed(shard, 'letter', text)}")
            time.sleep(0.05)
        states = shard.call(Count("index")).states
        print("pending:", states["scheduled"] + states["ready"])

        session = shard.open_session()
        session.lease("index", "indexer", count=10)
        delivery = session.receive(timeout=2.0)
        assert delivery is not None, "the document is quiet by now"
        print("indexed:", delivery.payloads.column("payload").to_pylist())
        ids = delivery.leased.ids
        shard.call(Ack("index", ids, np.full(len(ids), delivery.leased.token)))
        print("anything else:", session.receive(timeout=0.3))
        session.close()
        shard.close()


if __name__ == "__main__":
    main()
