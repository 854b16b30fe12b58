"""Align: rounds of groups become numbered steps, in an order drawn from (seed, epoch, round)."""

from collections import deque
from itertools import islice
from typing import Any, NamedTuple

from torchdata.nodes import BaseNode

from odb_stream.batching.ledger import Ledger, loss_scale
from odb_stream.nodes.pack import Group, Pack
from odb_stream.sample import PreparedSample, StepInfo
from odb_stream.seeds import STEP_ORDER, permutation


class Step(NamedTuple):
    """One step of this rank: its samples in batch order, and what the training loop must know of it."""

    samples: tuple[PreparedSample, ...]
    info: StepInfo


class Align(BaseNode[Step]):
    """Yields steps. The groups of a round come in random order, whatever lengths were planned together."""

    def __init__(self, source: Pack, *, seed: int, epoch: int) -> None:
        super().__init__()
        self._source = source
        self._seed = seed
        self._epoch = epoch
        self._round = 0
        self._planned: deque[Group] = deque()
        self._ledger = Ledger()

    def next(self) -> Step:
        if not self._planned:
            self._plan_round()
        group = self._planned.popleft()
        tally = group.tally
        totals = self._ledger.enter([tally])
        info = StepInfo(
            epoch=self._epoch,
            step=totals.step,
            refs=tuple(sample.ref for sample in group.samples),
            samples=tally.samples,
            tokens=tally.tokens,
            padded_tokens=tally.padded_tokens,
            supervised_tokens=tally.supervised,
            global_samples=totals.samples,
            global_tokens=totals.tokens,
            global_supervised_tokens=totals.supervised,
            samples_seen=totals.samples_seen,
            loss_scale=loss_scale(tally.supervised, totals.supervised, 1),
        )
        return Step(group.samples, info)

    def get_state(self) -> dict[str, Any]:
        return {"round": self._round, "source": self._source.state_dict()}

    def _plan_round(self) -> None:
        groups = list(islice(self._source, self._source.begin_round(self._round)))
        if not groups:
            raise StopIteration
        order = permutation(len(groups), STEP_ORDER, self._seed, self._epoch, self._round)
        self._planned.extend(groups[place] for place in order)
        self._round += 1
