"""The one test of resuming: stop after any step, resume with a new loader, compare with the run that never stopped."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import torch

import odb_stream as odb

Make = Callable[[], odb.Loader]
Seen = list[tuple[odb.StepInfo, dict[str, Any]]]


def epoch_of(stream: odb.Loader) -> Seen:
    """The steps of one epoch, comparable: step infos and batches."""
    return [comparable(batch) for batch in stream]


def comparable(batch: dict[str, Any]) -> tuple[odb.StepInfo, dict[str, Any]]:
    """A step with its tensors as types, shapes and bytes."""
    info = odb.pop_step(batch)
    return info, {name: plain(value) for name, value in batch.items()}


def plain(value: Any) -> Any:
    return (value.dtype, tuple(value.shape), value.numpy().tobytes()) if torch.is_tensor(value) else value


def uncut(make: Make, epochs: int) -> tuple[list[Seen], list[list[str]], dict[str, Any]]:
    """The whole run: its steps, the state before the first step and after each (as JSON), and the last report."""
    steps: list[Seen] = []
    states: list[list[str]] = []
    with make() as stream:
        for _ in range(epochs):
            states.append([json.dumps(stream.state_dict())])
            steps.append([])
            for batch in stream:
                steps[-1].append(comparable(batch))
                states[-1].append(json.dumps(stream.state_dict()))
        return steps, states, settled(stream.report())


def settled(report: dict[str, Any]) -> dict[str, Any]:
    """A report without what time decides."""
    return {name: value for name, value in report.items() if name != "wait_seconds"}


def check_every_cut(
    make: Make, *, epochs: int = 2, cuts: Iterable[int] | None = None, quota: bool = False
) -> list[Seen]:
    """Resume from every place of the first epoch (or the given ones) and compare all that follows, reports included.

    The last epoch is run to its end from each. The state of a step also equals the one that the resumed loader gives.
    With a ``quota`` the last step ends the epoch, so the state after it belongs to the next one.
    """
    steps, states, report = uncut(make, epochs)
    first = states[0]
    places = range(len(first) - quota)
    for cut in places if cuts is None else [cut for cut in cuts if cut in places]:
        with make() as stream:
            stream.load_state_dict(json.loads(first[cut]))
            assert json.dumps(stream.state_dict()) == first[cut], "right after a load"
            rest = []
            for number, batch in enumerate(stream, start=cut):
                rest.append(comparable(batch))
                assert json.loads(json.dumps(stream.state_dict())) == json.loads(first[number + 1]), (cut, number)
            assert rest == steps[0][cut:], f"after step {cut}"
            for following in steps[1:]:
                assert epoch_of(stream) == following, f"an epoch after the one resumed from step {cut}"
            assert settled(stream.report()) == report, f"the report, resumed from step {cut}"
    return steps
