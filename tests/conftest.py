"""Settings that all tests share.

The Hypothesis profile is chosen by the environment variable HYPOTHESIS_PROFILE:

same    the same examples in every run, so that a failure is about the change (the default)
search  new examples in every run: for looking for trouble
long    many new examples, for `make test-long`

No profile has a deadline, for an example or for making one: a slow machine is not a bug.
"""

import os
import tempfile

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]

common = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", common, derandomize=True)
settings.register_profile("search", common)
settings.register_profile("long", common, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_configure(config: pytest.Config) -> None:
    """Where no bytecode may be left in the tree, the processes of tests share some elsewhere.

    Tests start hundreds of brokers and commands; each would compile all that it imports.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        shared = tempfile.TemporaryDirectory(prefix="fasti-bytecode-", ignore_cleanup_errors=True)
        config.add_cleanup(shared.cleanup)
        os.environ["PYTHONPYCACHEPREFIX"] = shared.name
