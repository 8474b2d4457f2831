"""A connection that is cut when the server has stored a pack and before its answer is here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from fasti.cluster.nats import NatsConnection, NatsOptions
from fasti.storage.frames import Frame
from tests.cluster.answer_proxy import AnswerProxy
from tests.cluster.nats_rig import NatsServers, wait_until
from tests.cluster.stream_rig import ShardStreams


def test_an_append_whose_answer_was_cut_is_in_the_journal_once() -> None:
    servers = NatsServers(1)
    proxy = AnswerProxy(servers.ports[0])
    try:
        near = servers.connect()
        far = NatsConnection(NatsOptions([proxy.url]))
        streams = ShardStreams(far, replicas=1)
        journal = streams.open_journal()
        journal.append([Frame(1, 1, True, True, [b"once"])])
        name = streams.names.journal_stream

        def is_stored() -> bool:
            state = near.stream_state(name)
            return state is not None and state.last_sequence == 2

        with ThreadPoolExecutor(1) as pool:
            proxy.hold()
            synced = pool.submit(journal.sync)
            wait_until(is_stored, "the pack")
            assert not synced.done()
            proxy.hang_up()
            assert synced.result(60) == 1
        journal.append([Frame(2, 2, True, True, [b"twice"])])
        journal.sync()
        assert [bytes(frame.body) for frame in journal.replay(0)] == [b"once", b"twice"]
        state = near.stream_state(name)
        assert state is not None
        assert state.last_sequence == 3
        far.close()
        near.close()
    finally:
        proxy.close()
        servers.close()
