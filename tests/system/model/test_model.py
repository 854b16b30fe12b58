"""The concurrent model of the alignment stage, verified with spin: the rules hold, and each rule is needed.

``alignment.pml`` says what each number and each rule means, README.md what the model covers.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).with_name("alignment.pml")
MOST_DEPTH = 20_000
MOST_MEGABYTES = 2_000

needs = [program for program in ("spin", "gcc") if shutil.which(program) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(needs), reason=f"{' and '.join(needs)} not installed (Debian: apt-get install spin gcc)"),
]

SOUND = {
    # Two ranks, every behaviour within the stated numbers of groups, rounds and epochs.
    "loops run to the end": "-DROUNDS=3",
    "room for two steps": "-DROUNDS=3 -DQ=2",
    "stages fail": "-DROUNDS=3 -DFAIL=1",
    "stages fail, loops without collectives": "-DROUNDS=3 -DFAIL=1 -DALLREDUCE=0 -DQ=2",
    "all loops break at one step, two epochs": "-DSTOP=1 -DEPOCHS=2",
    "any loop breaks, stages fail, two epochs": "-DSTOP=2 -DFAIL=1 -DEPOCHS=2",
    "any loop breaks, stages fail, loops without collectives": "-DSTOP=2 -DFAIL=1 -DALLREDUCE=0",
    "accumulation": "-DA=3 -DSTOP=2 -DFAIL=1",
    "accumulation, all loops break at one step, two epochs": "-DA=2 -DSTOP=1 -DEPOCHS=2",
    "bursts": "-DBURST=2 -DSTOP=2 -DFAIL=1",
    "bursts that wait for room": "-DBURST=2 -DSTOP=1 -DFAIL=1 -DDECODES_AHEAD=0",
    "bursts and accumulation, all loops break at one step": "-DBURST=2 -DA=2 -DSTOP=1 -DFAIL=1",
    "no rebalancing": "-DREBALANCE=0 -DSTOP=2 -DFAIL=1",
    "a rank dies": "-DDEATH=1 -DSTOP=2 -DFAIL=1",
    # Three ranks: fewer groups, and at most one trouble in a run.
    "three ranks, stages fail": "-DR=3 -DFAIL=1",
    "three ranks, one breaks or fails": "-DR=3 -DK=1 -DSTOP=2 -DFAIL=1 -DTROUBLE=1",
    "three ranks, one breaks or fails, free loops": "-DR=3 -DK=1 -DSTOP=2 -DFAIL=1 -DALLREDUCE=0 -DTROUBLE=1",
    "three ranks, all loops break at one step": "-DR=3 -DK=1 -DSTOP=1",
    "three ranks, all loops break at one step, two epochs": "-DR=3 -DK=1 -DSTOP=1 -DEPOCHS=2",
    "three ranks, bursts": "-DR=3 -DK=2 -DBURST=1 -DFAIL=1 -DTROUBLE=1",
    "three ranks, one dies": "-DR=3 -DK=1 -DDEATH=1 -DTROUBLE=1",
}

DEADLOCK, ASSERTION = "invalid end state", "assertion violated"

# The rule that is switched off -> a configuration in which it is needed, and what its absence leads to.
MUTANTS = {
    "DELIVERS_BEFORE_NEXT_GATHER": ("-DK=3 -DQ=1", DEADLOCK),
    "CLOSE_RETURNS_AT_ONCE": ("-DSTOP=2", DEADLOCK),
    "FINISHED_RANKS_STAY": ("", ASSERTION),
    "BURSTS_CARRY_STATUS": ("-DBURST=2 -DFAIL=1", ASSERTION),
    "CONSUMED_WHEN_TAKEN": ("-DA=2 -DQ=1", DEADLOCK),
    "END_IS_TESTED_FIRST": ("-DSTOP=2", ASSERTION),
    "CLOSING_IS_TOLD": ("-DSTOP=1 -DEPOCHS=2", ASSERTION),
    "CLOSE_FREES_PUT": ("-DSTOP=1", DEADLOCK),
    "LEAVING_IS_TOLD": ("-DSTOP=2", DEADLOCK),
    "LEAVING_IS_ONE_DECISION": ("-DR=3 -DK=1 -DSTOP=2 -DTROUBLE=1", ASSERTION),
    "EXCHANGES_END_WITH_A_GATHER": ("-DR=3 -DK=1 -DSTOP=2 -DTROUBLE=1 -DALLREDUCE=0", ASSERTION),
    "EMPTY_STEPS_ARE_SKIPPED_BY_ALL": ("-DBURST=2", ASSERTION),
    "ERROR_COMES_AFTER_STEPS": ("-DFAIL=1", ASSERTION),
    "CUT_WINDOW_IS_YIELDED": ("-DA=2 -DFAIL=1", ASSERTION),
}


def verify(folder: Path, defines: str, optimisation: str) -> str:
    """What the checker reports of the model with these definitions. Most of the time of a short search is gcc's."""

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    shutil.copy(MODEL, folder)
    run("spin", "-a", *defines.split(), MODEL.name)
    run("gcc", optimisation, "-w", "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MOST_MEGABYTES}", "-o", "pan", "pan.c")
    return run("./pan", f"-m{MOST_DEPTH}", "-n")


@pytest.mark.parametrize("defines", SOUND.values(), ids=SOUND)
def test_no_deadlock_and_no_broken_promise(defines: str, tmp_path: Path) -> None:
    """A1, A5 and A8 of the protocol, in every order of events; the search is complete."""
    report = verify(tmp_path, defines, "-O1")
    assert "errors: 0" in report, report
    assert "+ Partial Order Reduction" in report
    for sign_of_a_partial_search in ("Search not completed", "max search depth too small", "truncated", "memory"):
        assert sign_of_a_partial_search not in report.split("Stats on memory usage")[0], report


@pytest.mark.parametrize("rule", MUTANTS)
def test_each_rule_is_needed(rule: str, tmp_path: Path) -> None:
    """Without the rule the checker finds a deadlock or a broken promise. Above, the same model with it has none."""
    defines, consequence = MUTANTS[rule]
    report = verify(tmp_path, f"{defines} -D{rule}=0", "-O0")
    assert "errors: 1" in report, report
    assert consequence in report, report


def test_every_rule_has_its_mutant() -> None:
    text = MODEL.read_text(encoding="utf-8")
    rules = text.split("/* ---- Rules")[1].split("#define BIT")[0]
    assert {line.split()[1] for line in rules.splitlines() if line.startswith("#ifndef")} == set(MUTANTS)
