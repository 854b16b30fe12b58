"""The page on the command line tells the truth: its examples run, in the order of the page."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from cli_support import odb_stream

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cli.md"
EXAMPLES = re.findall(r"^odb-stream (.*)$", PAGE.read_text(encoding="utf-8"), re.M)


@pytest.mark.slow
def test_the_examples_of_the_page_run(chats, tmp_path):
    np.save(tmp_path / "lengths.npy", np.random.default_rng(0).geometric(1 / 400, 20_000).astype(np.int32))
    for folder in ("pipelines", "shards"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    assert len(EXAMPLES) == 8
    for example in EXAMPLES:
        done = odb_stream(*shlex.split(example), cwd=tmp_path)
        assert done.returncode == 0, f"{example}\n{done.stderr}"
    assert (tmp_path / "report.json").is_file()
