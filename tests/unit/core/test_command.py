"""What commands say of themselves."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from fasti.core import commands as co
from fasti.core.command import Command
from fasti.core.engine import Engine
from fasti.core.keys import Keys, Rows
from fasti.core.kv.commands import KvDelete, KvPut
from fasti.core.sinks.commands import Carry
from fasti.errors import InvalidArgument

IDS = np.arange(1, 4, dtype=np.int64)


def test_everything_that_the_engine_decides_is_a_command() -> None:
    engine = Engine()
    for kind in {*engine._decide, *engine._by_kind}:
        assert issubclass(kind, Command), kind


def test_a_command_says_how_many_rows_and_bytes_it_brings() -> None:
    rows, keys = Rows.of([b"abc"] * 5), Keys(pa.array(["k"] * 5), b"s" * 16)
    produce = co.Produce("t", rows)
    assert (produce.count_rows(), produce.is_bulk) == (5, True)
    assert produce.encode() == len(rows.encoded) + 5 * 64
    ack = co.Ack("t", IDS, IDS)
    assert (ack.count_rows(), ack.encode(), ack.is_bulk) == (3, 0, False)
    assert co.Cancel("t", co.Target(ids=IDS)).count_rows() == 3
    assert co.List("t").count_rows() == 1
    assert co.List("t", target=co.Target(ids=IDS)).count_rows() == 3
    assert KvPut("t", rows, keys).encode() == produce.encode()
    # What goes when the disk is full takes no room, whatever it brings.
    assert (KvDelete("t", rows, keys).count_rows(), KvDelete("t", rows, keys).encode()) == (5, 0)
    assert co.Lease("t", 1, "c", 1).needs_session
    assert not ack.needs_session


def test_a_command_of_several_weighs_what_its_parts_weigh() -> None:
    produce, ack = co.Produce("t", Rows.of([b"abc"] * 5)), co.Ack("t", IDS, IDS)
    for whole in (co.Transaction([produce, ack]), Carry("s", 1, [produce, ack])):
        assert whole.parts == [produce, ack]
        assert list(whole.produces()) == [produce]
        assert whole.count_rows() == 8
        assert whole.encode() == produce.encode()
    assert list(ack.produces()) == []


def test_keys_that_lie_beside_no_payload_are_refused() -> None:
    keys = Keys(pa.array(["k"]), b"s" * 16)
    with pytest.raises(InvalidArgument):
        co.Transaction([co.Produce("t", Rows.of([b"x"]), keys=keys)]).encode()
