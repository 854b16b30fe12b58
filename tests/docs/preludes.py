"""What the pages leave to their reader, and which blocks cannot run here; both lists stay short."""

from pathlib import Path

from fences import Fence
from running import Finding, make_scratch, run_page
from s3_server import FULL, free_ports

MODEL = """
import torch


class Model(torch.nn.Module):
    \"\"\"Stands in for the reader's model: its loss depends on the ids, and it accepts whatever a batch holds.\"\"\"

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, input_ids, **others):
        self.loss = self.weight * input_ids.double().mean()
        return self


model = Model()
"""

PRELUDES: dict[str, str] = {"README.md": MODEL}
"""Page -> Python that runs before the page."""

STORE = "http://storage.local:9000"
"""The address that the pages give for a server; a server on loopback replaces it."""
PORT = "29500"
"""The port that the pages give for the first node; a free port replaces it."""

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
"""Page -> the text of each block that does not run -> the reason."""


def names_a_store(fences: list[Fence]) -> bool:
    return any(STORE in fence.text for fence in fences)


def run_as_listed(page: str, fences: list[Fence], folder: Path, store: str | None) -> list[Finding]:
    """Run a page in a new folder, as the tables above say; ``store`` is the address of its store's server."""
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
