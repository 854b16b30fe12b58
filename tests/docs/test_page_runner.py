"""The page runner finds failing blocks, outputs that differ, and blocks without a language."""

import sys
from pathlib import Path

import pytest
import running
from fences import Mark, pages, problems, read_fences
from rewrite_outputs import rewritten
from running import difference, run_page
from shell_settings import FORGOTTEN, forget_shell_settings

EXACT = Mark(numbers=True)


def page(*blocks: str) -> str:
    return "# A page\n" + "\n".join(blocks)


def block(language: str, *lines: str) -> str:
    return "\n".join([f"```{language}", *lines, "```"])


def run(text: str, folder: Path, **settings: object) -> list[str]:
    return [str(found) for found in run_page(read_fences(text, "docs/made-up.md"), folder, **settings)]  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "page").mkdir()
    return tmp_path / "page"


def test_blocks_share_names_files_and_the_prelude(folder: Path) -> None:
    text = page(
        block("python", "# file: parts.py", "def double(x):", "    return factor * x"),
        "Words.",
        block("sh", "ls *.py > names", "echo 21 >> names"),
        block("python", "file, number = open('names').read().split()", "print(file, double(int(number)))"),
        "<!-- same output -->",
        block("text", "parts.py 42"),
        block("python", "from parts import double", "if __name__ == '__main__':", "    print(factor, __name__)"),
        "<!-- same output -->",
        block("text", "2 __main__"),
        block("python", "# file: alone.py", "if __name__ == '__main__':", "    print('factor' in globals())"),
        block("sh", "python alone.py"),
        "<!-- same output -->",
        block("text", "False"),
    )
    assert run(text, folder, prelude="factor = 2\n") == []


@pytest.mark.parametrize(
    ("broken", "line", "words"),
    [
        (block("python", "x = 1", "x.nothing"), 6, ['made-up.md", line 7', "has no attribute 'nothing'"]),
        (block("python", "raise SystemExit(0)"), 6, ["SystemExit"]),
        (block("python", "import os", "os._exit(0)"), 6, ["the process ended"]),
        (block("sh", "echo told", "false", "echo after"), 6, ["told\n\nexit code 1"]),
        (block("python", "if __name__ == '__main__':", "    print(1 / 0)"), 6, ["ZeroDivisionError"]),
    ],
    ids=["error", "exit", "end", "command", "program"],
)
def test_a_failing_block_is_named_with_its_place_and_output(
    broken: str, line: int, words: list[str], folder: Path
) -> None:
    (found,) = run(page(block("sh", "true"), broken, block("sh", "touch later")), folder)
    assert found.startswith(f"docs/made-up.md:{line}: this block failed:")
    for word in words:
        assert word in found
    assert not (folder / "later").exists()


def test_a_page_that_does_not_end_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "SECONDS", 1.0)
    (found,) = run(page(block("sh", "cat /dev/zero > /dev/null"), block("sh", "touch later")), folder)
    assert found.startswith("docs/made-up.md:3: this block failed:")
    assert "took over 1 s" in found
    assert not (folder / "later").exists()


def test_an_output_that_differs_is_shown(folder: Path) -> None:
    text = page(block("sh", "echo one", "echo two"), "<!-- same output -->", block("text", "one", "three"))
    (found,) = run(text, folder)
    assert found.startswith("docs/made-up.md:8: ")
    assert "-three\n+two" in found


def test_only_what_is_listed_is_left_out(folder: Path) -> None:
    text = page(block("sh", "exit 3"))
    assert run(text, folder, not_run={"exit 3\n": "a reason"}) == []
    assert len(run(text, folder, not_run={"exit 3": "not the whole text"})) == 1


def test_stand_ins_replace_what_a_page_says_and_programs_are_of_this_interpreter(folder: Path) -> None:
    text = page(
        block("sh", "echo http://far > heard", "cat heard", "python -c 'import sys; print(sys.prefix)'"),
        "<!-- same output -->",
        block("text", "http://far", sys.prefix),
    )
    assert run(text, folder, stand_ins={"http://far": "http://near"}) == []
    assert (folder / "heard").read_text(encoding="utf-8") == "http://near\n"


def test_what_the_shell_says_of_outputs_does_not_count(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FORGOTTEN:
        monkeypatch.setenv(name, "40")
    forget_shell_settings()
    program = "import shutil, sys; print(sys.stdout.write_through, shutil.get_terminal_size().columns)"
    text = page(block("sh", f'python -c "{program}" | cat'), "<!-- same output -->", block("text", "False 80"))
    assert run(text, folder) == []


@pytest.mark.parametrize(
    ("shown", "printed", "mark", "same"),
    [
        ("a  \nb\n", "a\nb\n\n", EXACT, True),
        ("a 1", "a 2", EXACT, False),
        ("a\n...\nd", "a\nb\nc\nd", EXACT, True),
        ("a\n...\nd", "a\nb\nc", EXACT, False),
        ("│ 1,234 │ 0.5 │", "│    7 │ 1.25e-05 │", Mark(numbers=False), True),
        ("│ steps │ 7 │", "│ drops │ 7 │", Mark(numbers=False), False),
        ("a 1 in 3 s", "a 1 in 4 s", Mark(numbers=True, but=r"\d s$"), True),
        ("a 1 in 3 s", "a 2 in 3 s", Mark(numbers=True, but=r"\d s$"), False),
    ],
)
def test_outputs_are_compared_as_the_mark_says(shown: str, printed: str, mark: Mark, same: bool) -> None:
    assert (difference(shown, printed, mark) == "") == same


def test_the_form_of_a_page_is_checked() -> None:
    text = page(
        block("", "no language"),
        block("python3", "another"),
        "Words.\n\n    indented\n",
        block("sh", "true"),
        block("text", "not marked"),
        "Words.",
        "<!-- like -->",
        block("text", "marked, after words"),
    )
    found = problems(read_fences(text, "x.md"))
    assert [problem.split(": ")[0] for problem in found] == ["x.md:3", "x.md:6", "x.md:10", "x.md:16", "x.md:21"]


def test_every_page_of_docs_is_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "new.md").touch()
    assert pages(tmp_path)[-1] == "docs/new.md"


def test_outputs_that_differ_are_rewritten_in_place(folder: Path) -> None:
    text = page(
        block("sh", "echo one", "echo two"),
        "<!-- same output -->",
        block("text", "three"),
        block("sh", "echo new"),
        "<!-- same output -->",
        block("text", "old"),
        "",
    )
    found = run_page(read_fences(text, "x.md"), folder)
    expected = text.replace("three", "one\ntwo").replace("old", "new")
    assert rewritten(text, found) == expected
