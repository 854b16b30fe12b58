"""The servers that a storage test has for itself: an S3-compatible one that it may kill, and a faulty HTTP server."""

from collections.abc import Iterator

import pytest
from http_server import FaultyServer
from s3_server import S3Server, running_server


@pytest.fixture
def mortal_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running server of the test's own, to be killed."""
    with running_server(tmp_path_factory.mktemp("mortal")) as server:
        yield server


@pytest.fixture
def http() -> Iterator[FaultyServer]:
    """An HTTP server that fails in the ways that a test asks for."""
    with FaultyServer() as server:
        yield server
