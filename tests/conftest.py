"""Settings of all tests: the same examples in every run, no deadlines, one form of outputs; an S3 server."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from shell_settings import forget_shell_settings

if TYPE_CHECKING:
    from s3_server import S3Server

settings.register_profile("repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")

forget_shell_settings()
# The store of torch.distributed looks up the name of every address that connects to it. Where the name server loses a
# question, the C library asks again after 5 s, and the store stands still meanwhile.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:3")


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[S3Server]":
    """A running S3-compatible server that no test stops; each test writes below a prefix of its own."""
    # Imported here: most runs need no server, and obstore would load for all of them.
    from s3_server import running_server

    with running_server(tmp_path_factory.mktemp("s3")) as server:
        yield server
