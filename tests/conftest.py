"""Settings of all tests: property tests draw the same examples in every run and have no deadline."""

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
