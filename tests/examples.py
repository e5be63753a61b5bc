"""How many examples property tests draw.

`fast`, the default: the same few examples everywhere, so that `make test` tells what a change
broke. `nightly`: random ones, FROWN_EXAMPLES (500) for every test, kept if they fail and shrunk.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

NIGHTLY = int(os.environ.get("FROWN_EXAMPLES", "500"))
_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]  # an example is a table of boxes

settings.register_profile(
    "fast",
    max_examples=4,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=_SLOW,
)
settings.register_profile(
    "nightly",
    max_examples=NIGHTLY,
    derandomize=False,
    print_blob=True,
    deadline=None,
    suppress_health_check=_SLOW,
)
settings.load_profile("fast")  # unless pytest is told --hypothesis-profile nightly


def examples(fast: int) -> settings:
    """Draw so many examples in the fast profile, as many as any test in the nightly one."""
    nightly = not settings().derandomize
    return settings(max_examples=NIGHTLY if nightly else fast)
