"""Settings that all tests share.

The Hypothesis profile is chosen by the environment variable HYPOTHESIS_PROFILE:

dev   new examples in every run, so that a developer's machine keeps searching
ci    the same examples in every run, so that a red build is about the change
long  many examples, for `make test-long`

No profile has a deadline: a slow machine is not a bug.
"""

import os

from hypothesis import settings

settings.register_profile("dev", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("long", deadline=None, print_blob=True, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
