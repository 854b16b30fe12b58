"""The pages keep to the conventions, and every program and command on them runs and gives what the page shows.

Links lead somewhere, named files and functions exist, and the journey of a sample happens as written.
"""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fences import EXECUTED, ROOT, Fence, pages, problems, read_fences
from markdown_it import MarkdownIt
from preludes import NOT_RUN, PRELUDES, names_a_store, run_as_listed

from odb_stream import Budget, Loader, Sample, World, pop_step
from odb_stream.shards.members import open_members

PAGES = pages()
INDEX = ROOT / "docs" / "README.md"


def fences_of(page: str) -> list[Fence]:
    return read_fences((ROOT / page).read_text(encoding="utf-8"), page)


@pytest.mark.parametrize("page", PAGES)
def test_each_block_names_its_language_and_json_parses(page: str) -> None:
    fences = fences_of(page)
    assert not problems(fences), "\n".join(problems(fences))
    for fence in fences:
        if fence.language == "json":  # one value, or one a line
            try:
                json.loads(fence.text)
            except ValueError:
                for line in fence.text.splitlines():
                    json.loads(line)


def test_the_index_lists_every_page() -> None:
    listed = re.findall(r"^\| \[[^]]+\]\(([^)#]+)\) \|", INDEX.read_text(encoding="utf-8"), re.M)
    assert len(set(listed)) == len(listed)
    there = {(ROOT / page).resolve() for page in PAGES} - {INDEX.resolve()}
    assert there <= {(INDEX.parent / name).resolve() for name in listed}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_what_it_is_for(page: str) -> None:
    """A title, then words: no table, list, block or second heading before them."""
    kinds = [token.type for token in MarkdownIt("commonmark").parse((ROOT / page).read_text(encoding="utf-8"))]
    assert kinds[:4] == ["heading_open", "inline", "heading_close", "paragraph_open"]


def test_what_does_not_run_and_preludes_are_of_pages() -> None:
    assert set(NOT_RUN) | set(PRELUDES) <= set(PAGES)
    for page, blocks in NOT_RUN.items():
        texts = [fence.text for fence in fences_of(page) if fence.language in EXECUTED]
        for text, reason in blocks.items():
            assert text in texts, f"no block of {page} is {text!r}"
            assert reason


def test_ranks_that_share_a_pipe_write_whole_lines() -> None:
    """Under torchrun ``print`` writes a line and its end separately, so those of two ranks are sometimes mixed."""
    several = re.compile(r"^torchrun .*--nproc_per_node [2-9] (\w+\.py) \| sort$", re.M)
    found = 0
    for page in PAGES:
        fences = fences_of(page)
        for name in {name for fence in fences for name in several.findall(fence.text)}:
            (program,) = (fence.text for fence in fences if fence.text.startswith(f"# file: {name}\n"))
            assert "sys.stdout.write(" in program, (page, name)
            assert "print(" not in program, (page, name)
            found += 1
    assert found >= 3


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    fences = fences_of(page)
    store = request.getfixturevalue("s3").endpoint if names_a_store(fences) else None
    found = run_as_listed(page, fences, tmp_path / "page", store)
    assert not found, "\n\n".join(map(str, found))


LINKED = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "shards" / "README.md"]
LINKED += sorted((ROOT / "docs").glob("*.md"))
JOURNEY = ROOT / "docs" / "journey-of-a-sample.md"
ELSEWHERE = ("torch", "getexif", "TarInfo", "DataLoader", "ParallelMapper", "KEY")
"""Names on these pages that are not the package's own."""


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_and_named_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), target
    for name in re.findall(r"`((?:odb_stream|pipelines|shards|tools|tests|docs)/(?:[\w./-]*(?:/|\.\w+))?)`", text):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize(
    ("page", "least"), [(JOURNEY, 20), (ROOT / "docs" / "architecture.md", 30), (ROOT / "README.md", 15)], ids=str
)
def test_a_guide_to_the_code_names_what_exists(page: Path, least: int) -> None:
    """Each function, class or test in its text, ``name()``, ``Name.method`` or ``test_name``, is defined somewhere."""
    source = "\n".join(
        path.read_text(encoding="utf-8") for folder in ("odb_stream", "tests") for path in (ROOT / folder).rglob("*.py")
    )
    defined = set(re.findall(r"^\s*(?:def|class) (\w+)", source, re.M))
    defined |= set(re.findall(r"^ *(\w+)(?: = |: )", source, re.M))
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    named = re.findall(r"`((?:\w+\.)*\w+)\(\)`", text) + re.findall(r"`([A-Z]\w+(?:\.\w+)?|test_\w+)`", text)
    assert len(named) > least
    for name in named:
        if not name.startswith(ELSEWHERE):
            for part in name.split("."):
                assert part in defined, name


def test_what_the_readme_names_is_in_the_files_named() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"`(test_\w+)` in `(tests/[\w/]+\.py)`", text)
    assert len(named) > 5
    for name, file in named:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), (name, file)
    named = re.findall(r"`(\w+)(?:\.(\w+))?(?:\(\))?` in `(odb_stream/[\w/]+\.py)`", text)
    assert len(named) > 10
    for name, method, file in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^(?:def|class) {name}\b", source, re.M), (name, file)
        assert not method or re.search(rf"^    def {method}\b", source, re.M), (name, method, file)


def test_the_commands_of_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `odb-stream (\w+)", text, re.M))
    command = [sys.executable, "-m", "odb_stream.cli.main", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert named == set(re.findall(r"^\W*(write|index|check|run|inspect|simulate|state)\b", done.stdout, re.M))


@pytest.mark.slow
def test_the_journey_happens_as_written() -> None:
    """The numbers of the page, measured."""
    sys.path.insert(0, str(ROOT / "pipelines"))
    text_chat = importlib.import_module("text_chat")
    pipeline = text_chat.build()
    page = JOURNEY.read_text(encoding="utf-8")
    reading = pipeline.source.reading(World(), seed=0, epoch=0)
    record = next(record for record in reading.records() if record.key == "sums-000042")
    assert f"(sample {record.ref.index}, byte offset {record.ref.offset})" in page
    assert f"(seed, epoch): {', '.join(str(part.shard) for part in reading.plan)}." in page
    assert record.members["json"].decode() in page
    assert f"{len(record.members['json'])} bytes" in page

    sample = Sample.of(record, open_members(record), seed=0)
    for stage in pipeline.stages:
        sample = stage(sample)
    assert sample["text"].replace("\n", "\\n") in page
    assert f"spans   {sample['spans']}" in page
    assert " ".join(map(str, sample["input_ids"])) in " ".join(page.split())
    supervised = [str(label) for label in sample["labels"] if label != -100]
    assert f"{len(sample['labels'])} tokens, {len(supervised)} of them supervised" in page
    assert f"-100 ({len(sample['labels']) - len(supervised)} times) {' '.join(supervised)}" in " ".join(page.split())

    with Loader(pipeline, budget=Budget(tokens=4_096), layout="packed") as loader:
        for batch in loader:
            step = pop_step(batch)
            if record.ref in step.refs:
                place = step.refs.index(record.ref)
                first, after = batch["cu_seq_lens_q"][place : place + 2].tolist()
                assert f"in step {step.step}, with {step.supervised_tokens:,} supervised" in " ".join(page.split())
                assert f"with {step.samples - 1} others, {step.tokens:,} tokens" in " ".join(page.split())
                assert f"columns {first} to {after - 1}:" in page
        assert f"{loader.report()['emitted']} emitted, none dropped, {loader.report()['steps']} steps" in page
