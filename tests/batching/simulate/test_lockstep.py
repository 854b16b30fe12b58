"""``Lockstep`` notices ranks that are out of step, so tests that use it guard A5: for real such ranks would hang."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from odb_stream.batching.cost import Counts, Group
from odb_stream.batching.messages import Deliver, Event, Exchange, Gather
from odb_stream.batching.simulate.lockstep import Lockstep
from odb_stream.errors import PeerError

ONE, TWO = Gather(np.zeros(1, dtype=np.int64)), Gather(np.zeros(2, dtype=np.int64))
STEP = Deliver(*[None] * 5)
LETTER: Group[str] = Group(("letter",), (), Counts())


class Script:
    """A program that does what it is told."""

    def __init__(self, *events: Event) -> None:
        self.events = events
        self.answers: list[object] = []

    def run(self) -> Iterator[Event]:
        for event in self.events:
            self.answers.append((yield event))


def test_gathers_give_every_rank_all_rows() -> None:
    scripts = [Script(Gather(np.array([rank, 7])), STEP) for rank in range(3)]
    lockstep = Lockstep(scripts)
    assert len(list(lockstep.steps())) == 1
    assert all(script.answers[0].tolist() == [[0, 7], [1, 7], [2, 7]] for script in scripts)
    assert (lockstep.gathers, lockstep.bytes_gathered) == (1, 16)


def test_mail_reaches_its_rank_and_nobody_else_waits() -> None:
    scripts = [
        Script(Exchange({2: [LETTER]}, {}), STEP),
        Script(STEP),
        Script(Exchange({}, {0: 1}), STEP),
    ]
    lockstep = Lockstep(scripts)
    assert len(list(lockstep.steps())) == 1
    assert [script.answers[0] for script in scripts] == [{}, None, {0: [LETTER]}]
    assert lockstep.groups_moved == 1


@pytest.mark.parametrize(
    "scripts",
    [
        lambda: [Script(ONE), Script(TWO)],
        lambda: [Script(ONE), Script(STEP)],
        lambda: [Script(ONE, STEP), Script(ONE)],
        lambda: [Script(ONE), Script(Exchange({}, {0: 1}), ONE)],
        lambda: [Script(Exchange({1: [LETTER]}, {}), ONE), Script(Exchange({}, {0: 2}), ONE)],
    ],
    ids=["other sizes", "gather and step", "one ends", "no letter comes", "too few come"],
)
def test_ranks_out_of_step_are_an_error(scripts: Callable[[], list[Script]]) -> None:
    with pytest.raises(PeerError, match=r"not in step|have ended|expected"):
        list(Lockstep(scripts()).steps())


def test_an_error_of_one_rank_is_kept_and_the_others_are_out_of_step() -> None:
    class Failing(Script):
        def run(self) -> Iterator[Event]:
            yield ONE
            raise ValueError("bad")

    lockstep = Lockstep([Failing(), Script(ONE, ONE)])
    with pytest.raises(PeerError, match="some ranks have ended"):
        list(lockstep.steps())
    assert str(lockstep.errors[0]) == "bad"
