"""An S3-compatible server for the pages that name one: the server of the storage tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "support"))

from s3_server import S3Server, running_server


@pytest.fixture(scope="session")
def page_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running server with an empty bucket ``shards``."""
    with running_server(tmp_path_factory.mktemp("page-store")) as server:
        yield server
