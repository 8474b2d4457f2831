"""The examples run as they are, by one command, and say what they promise."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fasti.broker.launch import BrokerProcess
from tests.integration.serve_rig import SEGMENTS

EXAMPLES = Path(__file__).parents[2] / "examples"
# Not an example: what they share.
SHARED = {"connection.py"}
# What each prints; # is any number.
EXPECTED = {
    "reminders.py": """\
move tea: ok
cancel bins: ok
cancel gym: not_found
pending: 3
reminder: call mother
reminder: go to bed
reminder: the tea is ready
cancel call afterwards: done
""",
    "retries.py": """\
flaky: attempt 1 failed: connection reset
broken: attempt 1 failed: host is down
wrong: attempt 1 failed for good: no such address
flaky: attempt 2 worked
broken: attempt 2 failed: host is down
broken: attempt 3 failed: host is down
dead: broken: host is down
dead: wrong: no such address
redrive: {'ok': 1}
broken: attempt 1 worked
purge: {'ok': 1}
done: 2 dead: 0
""",
    "debounce.py": """\
typed 'D': ok, version 1
typed 'Dr': ok, version 2
typed 'Dra': ok, version 3
typed 'Draft': ok, version 4
pending: 1
indexed 'Draft' of version 4
indexed in all: 1 left: 0
""",
    "ledger.py": """\
balances: {'anna': 75, 'ben': 0, 'cleo': 20}
mails: {'anna': 3, 'ben': 2, 'cleo': 1}
lag of the mailer: 0 of the archive: 6
after the second day: {'anna': 150, 'ben': 0, 'cleo': 40}
the archive is behind by 6 events
it goes on with 6
""",
    "carts.py": """\
anna goes on shopping: ok
anna pays: ordered
ben pays: too late, the cart has expired
# ordered, # expired
both: 0, neither: 0
""",
    "rate_limit.py": """\
scheduled: {'ok': 20}
a slot every 0:00:00.050000
refused: order 10, again in 0.3 s
calls: 21 done: 20
before their slot: 0
""",
    "quotes.py": """\
anna takes the request and falls silent
answer: b'24 EUR, says ben'
requests done: 1
nobody there: ok - True
gave up in time
the reply is dead - too late: the call had ended before its reply came
""",
    "reports.py": """\
25 Oct 00:30 UTC is 25 Oct 02:30 +0200 in Paris
25 Oct 01:30 UTC is 25 Oct 02:30 +0100 in Paris
26 Oct 01:30 UTC is 26 Oct 02:30 +0100 in Paris
job: tidy up
job: tidy up
job: tidy up
never two at once: True
some passed over: True
run now: ok
again, though it is not finished: conflict
schedules left: 0
""",
    "fastapi_app.py": """\
POST tea: 201 ok
POST bins: 201 ok
POST bins again: 409 conflict
DELETE bins: 200 ok
DELETE bins again: 409 cancelled
DELETE gym: 404 not_found
POST without a time zone: 422 timezone_aware
delivered: the tea is ready
DELETE tea: 409 done
""",
}


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} - SHARED == set(EXPECTED)


def run(name: str, *arguments: str) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    # Who wins the race for a cart is the broker's to say; that somebody does is the example's point.
    printed = re.sub(r"(?m)^\d+ ordered, \d+ expired$", "# ordered, # expired", done.stdout)
    assert printed == EXPECTED[name]


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_example_says_what_it_should(name: str) -> None:
    run(name)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings=SEGMENTS) as started:
        yield started


@pytest.mark.parametrize(
    "name",
    [
        "carts.py",
        *(pytest.param(f"{n}.py", marks=pytest.mark.long) for n in ("fastapi_app", "retries")),
    ],
)
def test_an_example_works_with_a_broker_elsewhere(name: str, broker: BrokerProcess) -> None:
    run(name, "--address", broker.address)
