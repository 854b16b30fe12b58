"""What the pages leave to their reader, and what cannot run here: both kept short, for the pages tell the story."""

from pathlib import Path

from fences import Fence
from running import Finding, make_scratch, run_page
from s3_server import FULL, free_ports

MODEL = """
import torch


class Model(torch.nn.Module):
    \"\"\"Stands in for the reader's model: a loss that depends on the ids, and takes all that a batch holds.\"\"\"

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, input_ids, **others):
        self.loss = self.weight * input_ids.double().mean()
        return self


model = Model()
"""

PRELUDES: dict[str, str] = {"README.md": MODEL}
"""Page -> Python that runs before it."""

STORE = "http://storage.local:9000"
"""The address of a server that the pages name; a server on loopback takes its place."""
PORT = "29500"
"""The port of the first node that the pages name; a free one takes its place."""

NOT_RUN: dict[str, dict[str, str]] = {
    "README.md": {
        "make demo     # sets up .venv, streams the demo shards, shows the live table and the report\n"
        "make test     # the same set-up, runs the tests\n": "installs from the network; the tests are what is running",
    },
    "CONTRIBUTING.md": {
        "make test     # creates .venv, installs the package with its development tools, runs the tests that take "
        "seconds\n"
        "make check    # everything a change must pass: ruff, mypy --strict, all tests, the slow ones too\n": (
            "installs from the network; the tests are what is running"
        ),
    },
}
"""Page -> the text of each block that does not run, with the reason."""


def names_a_store(fences: list[Fence]) -> bool:
    return any(STORE in fence.text for fence in fences)


def run_as_listed(page: str, fences: list[Fence], folder: Path, store: str | None) -> list[Finding]:
    """Run a page in a new folder as the tables above say, with the address of the server that serves as its store."""
    make_scratch(folder)
    stand_ins = {PORT: str(free_ports(1)[0])} | ({STORE: store} if store else {})
    keys = {"AWS_ACCESS_KEY_ID": FULL[0], "AWS_SECRET_ACCESS_KEY": FULL[1], "AWS_REGION": "us-east-1"}
    return run_page(
        fences,
        folder,
        prelude=PRELUDES.get(page, ""),
        not_run=NOT_RUN.get(page),
        stand_ins=stand_ins,
        environment=keys if store else {},
    )
