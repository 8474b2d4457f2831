"""Reminders: put a message at a moment, move it, cancel it, and get the rest on time.

python examples/reminders.py
"""

import tempfile

import numpy as np

from fasti.broker.shard import Shard
from fasti.core.commands import Ack, Cancel, CreateTopic, Move, Produce, Target, When
from fasti.core.keys import Rows
from fasti.storage.files import LocalFiles

REMINDERS = {"tea": 100, "call": 200, "bins": 300, "bed": 400}  # milliseconds from now


def named(shard: Shard, *names: str) -> Target:
    """Messages by their own keys."""
    return Target(keys=Rows.of([b""] * len(names), key=names).keys(shard.store.seed))


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        shard = Shard(LocalFiles(directory))
        shard.call(CreateTopic("reminders"))

        rows = Rows.of([name.encode() for name in REMINDERS], key=list(REMINDERS))
        delays = np.array(list(REMINDERS.values())) * 1000
        shard.call(
            Produce("reminders", rows, When(delay_us=delays), keys=rows.keys(shard.store.seed))
        )

        # Until a message is handed out its owner may still change its mind, with a definite answer.
        moved = shard.call(Move("reminders", named(shard, "tea"), When(delay_us=500_000)))
        print("move tea:", moved.outcome().word)
        cancelled = shard.call(Cancel("reminders", named(shard, "bins", "gym")))
        print("cancel bins:", cancelled.outcome(0).word)
        print("cancel gym:", cancelled.outcome(1).word)

        session = shard.open_session()
        session.lease("reminders", "me", count=3)
        left = 3
        while left:
            delivery = session.receive(timeout=2.0)
            assert delivery is not None, "three reminders are coming"
            for payload, due_us in zip(
                delivery.payloads.column("payload").to_pylist(), delivery.leased.due_us, strict=True
            ):
                assert shard.clock.now_us() >= due_us, "never early"
                print("reminder:", payload.decode())
            ids = delivery.leased.ids
            shard.call(Ack("reminders", ids, np.full(len(ids), delivery.leased.token)))
            left -= len(ids)

        late = shard.call(Cancel("reminders", named(shard, "call")))
        print("cancel call afterwards:", late.outcome().word)
        session.close()
        shard.close()


if __name__ == "__main__":
    main()
