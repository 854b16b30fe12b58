"""A guarded step info is a step info that notices when its loss scale is read, and nothing else."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, replace

import pytest
from loader_data import step_info

from odb_stream.nodes.loss_scale_guard import LossScaleFlag, changed, guarded
from odb_stream.sample import StepInfo

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
        0.75,
        0.5,
        0.75,
    )
    with pytest.raises(FrozenInstanceError):
        info.loss_scale = 1.0  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        info.step = 1  # type: ignore[misc]
