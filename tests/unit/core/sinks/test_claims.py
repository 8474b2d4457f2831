"""Keys that are claimed piece by piece belong to one engine: a new one knows nothing of them."""

import pytest

from fasti.core import commands as co
from fasti.core.sinks import claims
from fasti.core.sinks import commands as sc
from fasti.errors import Overloaded
from tests.properties.sinks_rig import SinksRig


@pytest.fixture
def rig() -> SinksRig:
    rig = SinksRig()
    rig.stage("nightly", 1, 0, "produce", "line", [("a", b"1"), ("b", b"2")])
    return rig


STAGE = "nightly/line/1/0/0"


def claimed(rig: SinksRig, stage: str = STAGE) -> int:
    claim = claims.begin(rig.state, [stage])
    while claims.go_on(rig.state, claim):
        pass
    return claims.register(rig.state, claim)


def test_what_a_dropped_engine_claimed_decides_nothing(rig: SinksRig) -> None:
    claim = claimed(rig)
    rig.restart()
    rig.produce("line", [("a", b"somebody else's")])
    batch = sc.PublishBatch("nightly", 1, "produce", [STAGE], False)
    batch.claim = claim
    error = rig.call(batch).error
    assert isinstance(error, Overloaded)
    assert error.retryable
    # Asked again, with keys that are claimed now, it hears that one is taken.
    again = rig.call(sc.PublishBatch("nightly", 1, "produce", [STAGE], False))
    assert again.error is not None
    assert again.error.code == "already_exists"
    rig.check()


def test_nor_of_a_stage_that_is_no_sinks(rig: SinksRig) -> None:
    command = rig._produce("line", [("c", b"3")])
    command.stage = "plain"
    assert rig.call(command).error is None
    claim = claimed(rig, "plain")
    rig.restart()
    assert isinstance(rig.call(co.Publish("plain", False, claim)).error, Overloaded)
    assert rig.call(co.Publish("plain", False)).value[0] == 1
