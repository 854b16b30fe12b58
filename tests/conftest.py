"""Settings of all tests: property tests draw the same examples in every run, and no clock fails them."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")

# The store of torch.distributed looks up the name of every address that connects to it. Where the name server loses a
# question, the C library asks again after 5 s, and the store stands still meanwhile.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:3")
