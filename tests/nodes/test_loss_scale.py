"""Loss scales: one denominator for the steps of an update, and a guard that notices when the scale is read."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, replace
from fractions import Fraction

import pytest
from loader_data import step_info
from torchdata.nodes import IterableWrapper

from odb_stream.batching.totals import StepTotals
from odb_stream.errors import StageError
from odb_stream.nodes.accumulate import Accumulate
from odb_stream.nodes.align import Step
from odb_stream.nodes.collate import Finished
from odb_stream.nodes.loss_scale_guard import LossScaleFlag, changed, guarded
from odb_stream.sample import StepInfo


def finished(number: int, mine: int, everyone: int, *, ends_epoch: bool = False) -> Finished:
    info = step_info(step=number, supervised_tokens=mine, global_supervised_tokens=everyone, loss_scale=-1.0)
    totals = StepTotals(number, 2, 18, 18, 9, everyone, 0, 0, 0)
    return Finished({"number": number}, Step((), info, totals, None, ends_epoch))


def infos(steps: list[Finished], size: int, ranks: int = 2) -> list[StepInfo]:
    return [item.step.info for item in Accumulate(IterableWrapper(steps), steps=size, ranks=ranks)]


def test_a_window_shares_its_denominator_and_the_last_divides_by_what_it_holds():
    found = infos([finished(0, 3, 10), finished(1, 5, 20), finished(2, 4, 30), finished(3, 1, 4), finished(4, 1, 4)], 3)
    assert [info.loss_scale for info in found] == [3 * 2 / 60, 5 * 2 / 60, 4 * 2 / 60, 2 / 8, 2 / 8]
    assert [info.accum_index for info in found] == [0, 1, 2, 0, 1]
    assert [info.accum_last for info in found] == [False, False, True, False, True]


def test_scaled_losses_of_a_window_sum_to_the_token_mean():
    mine, everyone = [3, 0, 7], [10, 5, 14]
    scales = [Fraction(info.loss_scale) for info in infos(list(map(finished, range(3), mine, everyone)), 3)]
    token_sum = [Fraction(5 * tokens) for tokens in mine]  # each supervised token costs 5
    means = [total / tokens if tokens else Fraction(0) for total, tokens in zip(token_sum, mine, strict=True)]
    scaled = sum(scale * mean for scale, mean in zip(scales, means, strict=True))
    assert abs(scaled / 2 - Fraction(5 * sum(mine), sum(everyone))) < Fraction(1, 10**12)


def test_a_window_ends_where_a_quota_is_reached():
    found = infos([finished(0, 1, 4), finished(1, 1, 4, ends_epoch=True), finished(2, 1, 4)], 3)
    assert [info.accum_last for info in found] == [False, True, True]


class Failing(IterableWrapper):
    """Raises after its steps, at every further call."""

    def next(self):
        try:
            return super().next()
        except StopIteration:
            raise StageError("broken") from None


def test_an_error_inside_a_window_comes_after_the_steps_before_it():
    node = Accumulate(Failing([finished(number, 1, 4) for number in range(4)]), steps=3, ranks=2)
    found = [next(node).step.info for _ in range(4)]
    assert [info.accum_last for info in found] == [False, False, True, True]
    assert found[-1].loss_scale == 2 / 4
    for _ in range(2):
        with pytest.raises(StageError, match="broken"):
            next(node)


PLAIN = step_info(step=3, loss_scale=0.75)


@pytest.mark.parametrize(
    ("use", "reads"),
    [
        (lambda info: info.loss_scale, True),
        (asdict, True),
        (lambda info: replace(info, step=4), True),
        (lambda info: info.supervised_tokens, False),
        (lambda info: changed(info, step=4), False),
        (lambda info: replace(info, loss_scale=0.5), False),
        (copy.deepcopy, False),
        (pickle.dumps, False),
    ],
)
def test_only_a_look_at_the_loss_scale_raises_the_flag(use: Callable[[StepInfo], object], reads: bool) -> None:
    flag = LossScaleFlag()
    use(guarded(PLAIN, flag))
    assert flag.was_read == reads


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda info: pickle.loads(pickle.dumps(info))])
def test_copies_are_plain(copied: Callable[[StepInfo], StepInfo]) -> None:
    info = copied(guarded(PLAIN, LossScaleFlag()))
    assert (type(info), info) == (StepInfo, PLAIN)


def test_it_stays_frozen_and_can_be_replaced() -> None:
    info = guarded(PLAIN, LossScaleFlag())
    assert (info.loss_scale, replace(info, loss_scale=0.5).loss_scale, replace(info, step=4).loss_scale) == (
        0.75, 0.5, 0.75,
    )  # fmt: skip
    for name in ("loss_scale", "step"):
        with pytest.raises(FrozenInstanceError):
            setattr(info, name, 1)
