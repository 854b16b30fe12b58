"""What agreeing on steps costs one rank: CPU time per round and per step, and bytes per step, without a network.

    python tools/bench/alignment.py

Prints one JSON object. Each figure runs the program of one rank alone, on prepared answers and groups. So it measures
deciding and delivering, and neither planning nor sending nor waiting.

- ``ranks_8``: rank 0 of 8 in a whole epoch (steady rounds of 32 groups, then a drain with uneven ranks, and the last
  round). The answers are recorded from a run of all eight programs.
- ``ranks_1024``: one rank of 1,024 in steady rounds of 128 groups, and in rounds of a drain, with seeded costs.
- ``waiting``: how long a training loop of 20 ms per step waits, in two real processes (``step_waits.py``).

Bytes are what a rank contributes to the gathers of a step; it receives that times the number of ranks.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from step_waits import waiting

from odb_stream.batching.cost import Footprint, Group, Size
from odb_stream.batching.messages import EXHAUSTED, HEADER_FIELDS, Deliver, Event, Exchange
from odb_stream.batching.program import Program
from odb_stream.batching.simulate.figures import LengthPacker, deal
from odb_stream.batching.simulate.lockstep import Lockstep
from odb_stream.batching.totals import RankReport
from odb_stream.config import Budget

FOOTPRINT = Footprint("padded", Budget(16_384))
ROUND = 3
"""The column of a header that holds the round's number."""


class PreparedPacker:
    """Hands out groups that were formed before: in each round the next of these lists.

    Args:
        rounds: the groups of each round.
        groups: how many there are in all; infinity for an epoch without end.
        bound: the most groups that a round may hold, together with the surplus of the round before.
    """

    source_ended = False

    def __init__(self, rounds: Iterable[Sequence[Group[int]]], *, groups: float, bound: int) -> None:
        self._rounds = iter(rounds)
        self._left = groups
        self._bound = bound
        self._round: Iterator[Group[int]] = iter(())

    @property
    def exhausted(self) -> bool:
        return self._left == 0

    def report(self) -> RankReport:
        # Two reasons for drops, as in a typical run.
        return RankReport({"oversize": 3, "bad_image": 1}, 0, 200)

    def begin_round(self, _: int) -> int:
        self._round = iter(next(self._rounds, ()))
        return self._bound

    def next_group(self) -> Group[int] | None:
        group = next(self._round, None)
        self._left -= group is not None
        return group


class RecordingPacker(LengthPacker):
    """A packing stage that keeps the groups of each round."""

    def __init__(self, lengths: list[int], *, window: int, lookahead: int) -> None:
        super().__init__(lengths, FOOTPRINT, window=window, lookahead=lookahead)
        self.rounds: list[list[Group[int]]] = []

    def begin_round(self, number: int) -> int:
        self.rounds.append([])
        return super().begin_round(number)

    def next_group(self) -> Group[int] | None:
        group = super().next_group()
        if group is not None:
            self.rounds[-1].append(group)
        return group


class RecordedProgram(Program[int]):
    """A program that keeps the answers it gets."""

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


def lengths(samples: int) -> list[int]:
    """Seeded lengths with a long tail, 16 to 16,384 tokens."""
    rng = np.random.Generator(np.random.PCG64(5))
    return np.clip(rng.lognormal(6.9, 0.6, samples), 16, 16_384).astype(int).tolist()


def drive(program: Program[int], answer: Callable[[Event], Any]) -> tuple[float, int]:
    """CPU seconds of a program that gets these answers, and its number of steps."""
    steps = 0
    started = time.process_time()
    run = program.run()
    given = None
    while True:
        try:
            event = run.send(given)
        except StopIteration:
            return time.process_time() - started, steps
        steps += isinstance(event, Deliver)
        given = answer(event)


def replay(program: Program[int], answers: list[Any]) -> tuple[float, int]:
    """The same with answers that were recorded."""
    following = iter(answers)
    return drive(program, lambda _: next(following))


def eight_ranks(repeats: int) -> dict[str, float]:
    """Rank 0 of 8, window 256, 32 groups per round; the ranks' shares differ, so the epoch ends with a drain."""
    ranks = deal(lengths(40_000), 8, [9, 9, 10, 10, 10, 10, 10, 10])
    packers = [RecordingPacker(own, window=256, lookahead=32) for own in ranks]
    programs = [
        RecordedProgram(rank=rank, ranks=8, groups=packer, footprint=FOOTPRINT, seed=0, epoch=0)
        for rank, packer in enumerate(packers)
    ]
    lockstep = Lockstep(programs)
    steps = sum(1 for _ in lockstep.steps())
    seconds, rounds = [], packers[0].rounds
    for _ in range(repeats):
        # Nothing bounds a round here: the recorded rounds hold what the bound of that run allowed.
        packer = PreparedPacker(rounds, groups=sum(map(len, rounds)), bound=1 << 30)
        program = Program(rank=0, ranks=8, groups=packer, footprint=FOOTPRINT, seed=0, epoch=0)
        spent, replayed = replay(program, programs[0].answers)
        assert replayed == steps, f"replayed {replayed} of {steps} steps"
        seconds.append(spent)
    return {
        "rounds": len(rounds),
        "steps": steps,
        "ms_a_round": round(statistics.median(seconds) / len(rounds) * 1000, 3),
        "ms_a_step": round(statistics.median(seconds) / steps * 1000, 4),
        "groups_moved": lockstep.groups_moved,
        "bytes_a_rank_a_step": round(lockstep.bytes_gathered / steps),
    }


def made_up_group(cost: int) -> Group[int]:
    """A group of eight equal samples with about this cost."""
    return Group.of(tuple(range(8)), (Size(cost // 8, 0, cost // 16, cost),) * 8, FOOTPRINT)


class MadeUpPeers:
    """Answers the gathers and exchanges of one rank as many peers with seeded groups would, until all end."""

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
        if isinstance(event, Deliver):
            return None
        if isinstance(event, Exchange):
            return {origin: self.groups[:number] for origin, number in event.incoming.items()}
        self.bytes_gathered += event.values.nbytes
        if len(event.values) < HEADER_FIELDS:  # the start of ranks, and their word that groups arrived: equal
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
    """Rank 0 of many: each rank plans its number of ``held`` groups per round; some have no data left."""
    peers = MadeUpPeers(len(held), held, exhausted, rounds)

    def program() -> Program[int]:
        packer = PreparedPacker(repeat(peers.groups), groups=math.inf, bound=held[0])
        return Program(rank=0, ranks=len(held), groups=packer, footprint=FOOTPRINT, seed=0, epoch=0)

    answers: list[Any] = []

    def record(event: Event) -> Any:
        answers.append(peers.answer(event))
        return answers[-1]

    drive(program(), record)
    runs = [replay(program(), answers) for _ in range(repeats)]
    seconds = statistics.median(spent for spent, _ in runs)
    steps = runs[0][1]
    return {
        "steps_a_round": steps / rounds,
        "ms_a_round": round(seconds / rounds * 1000, 2),
        "ms_a_step": round(seconds / steps * 1000, 3),
        "bytes_a_rank_a_step": round(peers.bytes_gathered / steps),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, help="replays, of which the median is printed")
    parser.add_argument("--rounds", type=int, default=5, help="rounds with 1,024 ranks")
    parser.add_argument("--samples", type=int, default=12_000, help="samples of the run with real processes")
    options = parser.parse_args()
    steady = [128] * 1024, [False] * 1024
    drain = [128] * 64 + [0] * 960, [False] * 64 + [True] * 960
    found = {
        "ranks_8": eight_ranks(options.repeats),
        "ranks_1024_steady": many_ranks(*steady, options.rounds, options.repeats),
        "ranks_1024_drain": many_ranks(*drain, options.rounds, options.repeats),
        "waiting": waiting(options.samples),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
