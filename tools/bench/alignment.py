"""What agreeing on steps costs one rank: CPU time a round and a step, and bytes a step, without a network.

    python tools/bench/alignment.py

Prints one JSON object. Each figure runs one rank's program alone, on answers that were prepared before, and groups
that were formed before: the time is that of deciding and delivering, not of planning, sending or waiting.

- ``ranks_8``: rank 0 of 8 in a whole epoch (steady rounds of 32 groups, then a drain with uneven ranks, and the last
  round). The answers are recorded from a run of all eight programs.
- ``ranks_1024``: one rank of 1,024 in steady rounds of 128 groups and in rounds of a drain, made up from seeded costs.
- ``waiting``: how long a training loop of 20 ms a step waited, in two real processes (``step_waits.py``).

Bytes are what a rank contributes to the gathers, a step; it receives that times the number of ranks.
"""

import argparse
import json
import statistics
import time
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
from step_waits import waiting

from odb_stream.batching.cost import Footprint, Size
from odb_stream.batching.events import Deliver, Event, Exchange
from odb_stream.batching.groups import Group
from odb_stream.batching.messages import EXHAUSTED, HEADER_FIELDS
from odb_stream.batching.program import Program
from odb_stream.batching.simulate.figures import LengthPacker, deal
from odb_stream.batching.simulate.lockstep import Lockstep
from odb_stream.batching.totals import RankReport
from odb_stream.config import Budget

FOOTPRINT = Footprint("padded", Budget(16_384))
SAMPLES = 40_000
WITHOUT_BOUND = 1 << 30
ROUND = 3
"""The column of a header that holds the round's number."""


class NothingDropped:
    """The part of a packing stage that does not form groups."""

    source_ended = False

    def report(self) -> RankReport:
        return RankReport({"oversize": 3, "bad_image": 1}, 0, 200)


class PreparedPacker(NothingDropped):
    """Hands out groups that were formed before, in each round as many as in that run."""

    def __init__(self, groups: list[Group[int]], planned: list[int]) -> None:
        self._groups = iter(groups)
        self._left = len(groups)
        self._planned = planned
        self._of_round = 0

    @property
    def exhausted(self) -> bool:
        return self._left == 0

    def begin_round(self, number: int) -> int:
        self._of_round = self._planned[number] if number < len(self._planned) else 0
        return WITHOUT_BOUND  # the bound counts the surplus, too

    def next_group(self) -> Group[int] | None:
        if not self._of_round:
            return None
        self._of_round -= 1
        self._left -= 1
        return next(self._groups)


class RecordingPacker(LengthPacker):
    """A packing stage that keeps what it handed out, and how much in each round."""

    def __init__(self, lengths: list[int], *, window: int, lookahead: int) -> None:
        super().__init__(lengths, FOOTPRINT, window=window, lookahead=lookahead)
        self.handed_out: list[Group[int]] = []
        self.planned: list[int] = []

    def begin_round(self, number: int) -> int:
        self.planned.append(0)
        return super().begin_round(number)

    def next_group(self) -> Group[int] | None:
        group = super().next_group()
        if group is not None:
            self.handed_out.append(group)
            self.planned[-1] += 1
        return group


class RecordedProgram(Program[int]):
    """A program that keeps what it was answered."""

    def run(self) -> Generator[Event, Any, None]:
        self.answers: list[Any] = []
        run = super().run()
        answer = None
        while True:
            try:
                event = run.send(answer)
            except StopIteration:
                return
            answer = yield event
            self.answers.append(answer)


def lengths() -> list[int]:
    """Seeded lengths with a long tail, 16 to 16,384 tokens."""
    rng = np.random.Generator(np.random.PCG64(5))
    return np.clip(rng.lognormal(6.9, 0.6, SAMPLES), 16, 16_384).astype(int).tolist()


def replay(program: Program[int], answers: Iterator[Any]) -> tuple[float, int]:
    """CPU seconds of a program that is given these answers, and its steps."""
    steps = 0
    started = time.process_time()
    run = program.run()
    answer = None
    while True:
        try:
            event = run.send(answer)
        except StopIteration:
            return time.process_time() - started, steps
        steps += isinstance(event, Deliver)
        answer = next(answers)


def eight_ranks(repeats: int) -> dict[str, float]:
    """Rank 0 of 8, window 256, 32 groups a round; the ranks' shares differ, so that there is a drain."""
    ranks = deal(lengths(), 8, [9, 9, 10, 10, 10, 10, 10, 10])
    packers = [RecordingPacker(own, window=256, lookahead=32) for own in ranks]
    programs = [
        RecordedProgram(rank=rank, ranks=8, groups=packer, footprint=FOOTPRINT, seed=0, epoch=0)
        for rank, packer in enumerate(packers)
    ]
    lockstep = Lockstep(programs)
    steps = sum(1 for _ in lockstep.steps())
    seconds = []
    for _ in range(repeats):
        packer = PreparedPacker(packers[0].handed_out, packers[0].planned)
        program = Program(rank=0, ranks=8, groups=packer, footprint=FOOTPRINT, seed=0, epoch=0)
        spent, replayed = replay(program, iter(programs[0].answers))
        assert replayed == steps, f"{replayed} steps were replayed of {steps}"
        seconds.append(spent)
    rounds = len(packers[0].planned)
    return {
        "rounds": rounds,
        "steps": steps,
        "ms_a_round": round(statistics.median(seconds) / rounds * 1000, 3),
        "ms_a_step": round(statistics.median(seconds) / steps * 1000, 4),
        "groups_moved": lockstep.groups_moved,
        "bytes_a_rank_a_step": round(lockstep.bytes_gathered / steps),
    }


def made_up_group(cost: int) -> Group[int]:
    """A group of eight equal samples with about this cost."""
    return Group.of(tuple(range(8)), (Size(cost // 8, 0, cost // 16, cost),) * 8, FOOTPRINT)


class MadeUpPeers:
    """Answers one rank's gathers and exchanges as many peers with seeded groups would, then all end."""

    def __init__(self, ranks: int, held: list[int], exhausted: list[bool], rounds: int) -> None:
        self.ranks, self.held, self.exhausted, self.rounds = ranks, held, exhausted, rounds
        rng = np.random.Generator(np.random.PCG64(6))
        costs = rng.integers(12_000, 16_384, (ranks, max(held))) // 8 * 8
        rows = np.stack([np.array(made_up_group(cost).counts) for cost in range(0, 16_384, 8) if cost], axis=0)
        self.tables = rows[costs // 8 - 1]
        self.tables[np.arange(max(held)) >= np.array(held)[:, None]] = 0
        self.groups = [made_up_group(cost) for cost in costs[0, : held[0]].tolist()]
        self.bytes_gathered = 0

    def answer(self, event: Event) -> Any:
        """What the rank gets for what it asks."""
        if isinstance(event, Deliver):
            return None
        if isinstance(event, Exchange):
            return {origin: self.groups[:number] for origin, number in event.incoming.items()}
        self.bytes_gathered += event.values.nbytes
        if len(event.values) < HEADER_FIELDS:  # where ranks begin, and that all have what moved to them: the same
            return np.tile(event.values, (self.ranks, 1))
        if len(event.values) == self.tables[0].size:
            return self.tables.reshape(self.ranks, -1)
        headers = np.tile(event.values, (self.ranks, 1))
        if headers[0, ROUND] == self.rounds:
            headers[:, :2] = EXHAUSTED, 0
        else:
            headers[:, 0] = np.where(self.exhausted, EXHAUSTED, 0)
            headers[:, 1] = self.held
        return headers


def many_ranks(held: list[int], exhausted: list[bool], rounds: int, repeats: int) -> dict[str, float]:
    """Rank 0 of many: ``held`` groups a rank in each round, of which some ranks have reached the end of their data."""
    peers = MadeUpPeers(len(held), held, exhausted, rounds)

    def program() -> Program[int]:
        packer = EndlessPacker(peers.groups)
        return Program(rank=0, ranks=len(held), groups=packer, footprint=FOOTPRINT, seed=0, epoch=0)

    answers = []
    run = program().run()
    event = next(run, None)
    while event is not None:
        answers.append(peers.answer(event))
        try:
            event = run.send(answers[-1])
        except StopIteration:
            break
    runs = [replay(program(), iter(answers)) for _ in range(repeats)]
    seconds = statistics.median(spent for spent, _ in runs)
    steps = runs[0][1]
    return {
        "steps_a_round": steps / rounds,
        "ms_a_round": round(seconds / rounds * 1000, 2),
        "ms_a_step": round(seconds / steps * 1000, 3),
        "bytes_a_rank_a_step": round(peers.bytes_gathered / steps),
    }


class EndlessPacker(NothingDropped):
    """Hands out the same groups, all of them every round."""

    exhausted = False

    def __init__(self, groups: list[Group[int]]) -> None:
        self._groups = groups
        self._next = 0

    def begin_round(self, _: int) -> int:
        self._next = 0
        return len(self._groups)

    def next_group(self) -> Group[int]:
        self._next += 1
        return self._groups[self._next - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, help="replays, of which the median is printed")
    parser.add_argument("--rounds", type=int, default=5, help="rounds with 1,024 ranks")
    parser.add_argument("--samples", type=int, default=12_000, help="samples of the run with real processes")
    options = parser.parse_args()
    steady = [128] * 1024, [False] * 1024
    drain = [128] * 64 + [0] * 960, [False] * 64 + [True] * 960
    result = {
        "ranks_8": eight_ranks(options.repeats),
        "ranks_1024_steady": many_ranks(*steady, options.rounds, options.repeats),
        "ranks_1024_drain": many_ranks(*drain, options.rounds, options.repeats),
        "waiting": waiting(options.samples),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
