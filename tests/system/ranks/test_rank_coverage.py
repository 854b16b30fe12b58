"""Ranks with any data make the same steps, emit every sample once, and train as one process would."""

import copy
import functools
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ranks_data import numbered_text, write_numbers
from ranks_support import run_ranks, values
from ranks_training import Case, EpochRecord, Trained, in_order, train_all, watched_epoch

import odb_stream as odb

MOST_ERROR = 1e-9
"""A thousandth of what is promised, since float64 is exact enough for it."""

SMALL = {"window": 64, "lookahead": 8}

CASES = {
    "one rank": Case((200,)),
    "1333/667": Case((1333, 667)),
    "1333/667, packed, three steps an update": Case((1333, 667), settings={"layout": "packed", "grad_accum": 3}),
    "1333/667, nothing moves": Case((1333, 667), settings={"rebalance": False}),
    "667/600/466/267": Case((667, 600, 466, 267)),
    "667/600/466/267, nothing moves, three steps an update": Case(
        (667, 600, 466, 267), settings={"rebalance": False, "grad_accum": 3}
    ),
    "60/60/30": Case((60, 60, 30), settings=SMALL),
    "60/60/30, packed, nothing moves": Case((60, 60, 30), settings={**SMALL, "layout": "packed", "rebalance": False}),
    "67/127": Case((67, 127), settings=SMALL),
    "67/127, packed, nothing moves": Case((67, 127), settings={**SMALL, "layout": "packed", "rebalance": False}),
    "65/3": Case((65, 3), settings=SMALL),
    "65/3, nothing moves, three steps an update": Case(
        (65, 3), settings={**SMALL, "rebalance": False, "grad_accum": 3}
    ),
    "a rank with nothing": Case((0, 67)),
    "a rank with nothing, nothing moves": Case((67, 0, 31), settings={"rebalance": False}),
    "fewer samples than ranks": Case((0, 0, 2, 0)),
    "nobody has anything": Case((0, 0, 0)),
    "an empty sample comes first on rank 0": Case((40, 31), empty_first_on=0, shuffle=False),
    "an empty sample is all that rank 0 has": Case((0, 31), empty_first_on=0),
    "three epochs": Case((67, 127), epochs=3, settings=SMALL),
    "three epochs, packed, nothing moves, two steps an update": Case(
        (60, 10, 30), epochs=3, settings={"layout": "packed", "rebalance": False, "grad_accum": 2}
    ),
    "an optional budget of samples": Case((60, 20), settings={"budget": odb.Budget(512, samples=3)}),
}

QUOTAS = {
    "one epoch is less than a pass": Case((300, 20), 3, settings={**SMALL, "closure": "quota", "quota": 150}),
    "one epoch is several passes": Case((5, 120, 30), 3, settings={"closure": "quota", "quota": 400}),
    "three steps an update, packed": Case(
        (7, 90), 3, settings={"closure": "quota", "quota": 200, "grad_accum": 3, "layout": "packed"}
    ),
}


@functools.cache
def trained(size: int) -> list[dict[str, Trained]]:
    """What came of all cases of a world size, by rank: all are run in the same processes, once."""
    cases = {name: case for name, case in {**CASES, **QUOTAS}.items() if len(case.shares) == size}
    results: list[dict[str, Trained]] = values(run_ranks(train_all, size, cases))
    return results


def by_epoch(ranks: list[Trained]) -> list[list[EpochRecord]]:
    return [list(records) for records in zip(*(rank.epochs for rank in ranks), strict=True)]


def check_steps(ranks: list[EpochRecord], number: int, *, accum: int = 1) -> None:
    """All ranks made the same steps, and what a step says on each is what all of them did in it."""
    steps = len(ranks[0].infos)
    assert [len(rank.infos) for rank in ranks] == [steps] * len(ranks)
    seen = 0
    for step, infos in enumerate(zip(*(rank.infos for rank in ranks), strict=True)):

        def total(name: str, infos: tuple[dict[str, Any], ...] = infos) -> int:
            return sum(info[name] for info in infos)

        seen += total("samples")
        window = range(step - step % accum, min(step - step % accum + accum, steps))
        supervised = sum(rank.infos[other]["supervised_tokens"] for rank in ranks for other in window)
        for info in infos:
            assert (info["epoch"], info["step"], info["samples_seen"]) == (number, step, seen)
            assert info["global_samples"] == total("samples")
            assert info["global_tokens"] == total("tokens")
            assert info["global_supervised_tokens"] == total("supervised_tokens")
            assert info["loss_scale"] == pytest.approx(info["supervised_tokens"] * len(ranks) / supervised)
            assert (info["accum_index"], info["accum_last"]) == (step % accum, step == window[-1])
            assert info["idle"] == (info["samples"] == 0) == (info["refs"] == ())
            assert not info["has_images"]
            assert not info["any_rank_has_images"]


def checked(name: str, case: Case) -> list[Trained]:
    """What came of a case on each rank, after the checks that every case passes."""
    results = [of_rank[name] for of_rank in trained(len(case.shares))]
    for number, ranks in enumerate(by_epoch(results)):
        if ranks[0].infos:
            ranks[0].check(MOST_ERROR)
        check_steps(ranks, number, accum=case.settings.get("grad_accum", 1))
    return results


@pytest.mark.parametrize("name", CASES)
def test_ranks_cover_their_data_in_step_and_train_as_one_process(name: str) -> None:
    """Every sample once, equal steps, exact counts, and the gradient of one process at every update.

    Fails when ``loss_scale`` is 1, or knows only this rank's tokens, or only one step of several; when surplus groups
    are lost, idle steps left out (the ranks then hang), groups not moved, or labels not moved with them.
    """
    case = CASES[name]
    results = checked(name, case)
    for ranks in by_epoch(results):
        assert in_order(rank.emitted for rank in ranks) == case.numbers
        idle = [[info["idle"] for info in rank.infos] for rank in ranks]
        if case.settings.get("rebalance", True):
            assert sum(map(sum, idle)) < len(ranks)
            assert not any(any(row[:-1]) for row in idle)
        else:
            owners = [{ref.shard for info in rank.infos for ref in info["refs"]} for rank in ranks]
            assert all(owner <= {rank} for rank, owner in enumerate(owners))
    check_reports(case, results)


def check_reports(case: Case, results: list[Trained]) -> None:
    """The global figures are alike on all ranks and are what the steps add up to."""
    ranks, reports = len(results), [result.report for result in results]
    everyone = reports[0]["global"]
    assert all(report["global"] == everyone for report in reports)
    steps = [step for epoch in by_epoch(results) for step in zip(*(rank.infos for rank in epoch), strict=True)]
    infos = [info for step in steps for info in step]
    empty = case.empty_first_on is not None
    assert everyone["emitted"] == sum(info["samples"] for info in infos) == sum(r["emitted"] for r in reports)
    assert everyone["dropped"] == ({"empty": case.epochs} if empty else {})
    assert [report["dropped"] for report in reports] == [
        everyone["dropped"] if rank == case.empty_first_on else {} for rank in range(ranks)
    ]
    assert everyone["abandoned"] == 0
    assert everyone["steps"] == len(steps)
    assert everyone["idle_steps"] == sum(info["idle"] for info in infos)
    for name in ("tokens", "padded_tokens", "supervised_tokens"):
        assert everyone[name] == sum(info[name] for info in infos)
    if steps:
        critical = sum(max(info["padded_tokens"] for info in step) for step in steps)
        assert everyone["critical_ratio"] == pytest.approx(critical * ranks / everyone["tokens"])
        assert everyone["padding_ratio"] == pytest.approx(1 - everyone["tokens"] / everyone["padded_tokens"])
    assert [result.samples for result in results] == [sum(case.shares) + empty] * ranks


@pytest.mark.parametrize("name", QUOTAS)
def test_a_quota_ends_every_epoch_at_the_first_step_that_reaches_it(name: str) -> None:
    """Very uneven ranks repeat their data, none idles, and the overshoot is less than a step.

    Fails when an epoch ends some samples later.
    """
    case = QUOTAS[name]
    results = checked(name, case)
    for ranks in by_epoch(results):
        last = ranks[0].infos[-1]
        assert 0 <= last["samples_seen"] - case.settings["quota"] < last["global_samples"]
        assert not any(info["idle"] for rank in ranks for info in rank.infos)
    for rank, result in enumerate(results):
        own = set(range(sum(case.shares[:rank]), sum(case.shares[: rank + 1])))
        emitted = [n for epoch in result.epochs for n in epoch.emitted]
        assert set(emitted) <= own
        if len(emitted) > 3 * len(own):
            assert set(emitted) == own


def read_one_shard(addresses: list[str]) -> list[tuple[list[EpochRecord], int | None]]:
    found = []
    for address in addresses:
        pipeline = odb.Pipeline(odb.Shards(address), numbered_text)
        with odb.Loader(pipeline, budget=odb.Budget(512), window=16, lookahead=8, workers=0) as stream:
            found.append(([watched_epoch(stream) for _ in range(2)], stream.samples))
    return found


def test_four_ranks_share_one_shard(tmp_path: Path) -> None:
    """With an index each reads its quarter and the number of samples is known; without one each keeps every fourth."""
    shards = [write_numbers(tmp_path / f"{name}.tar", 403, indexed=name == "indexed") for name in ("indexed", "plain")]
    results = values(run_ranks(read_one_shard, 4, shards))
    for of_ranks, samples in zip(zip(*results, strict=True), (403, None), strict=True):
        assert [known for _, known in of_ranks] == [samples] * 4
        for number, ranks in enumerate(zip(*(epochs for epochs, _ in of_ranks), strict=True)):
            assert in_order(rank.emitted for rank in ranks) == list(range(403))
            check_steps(list(ranks), number)
            assert all(len(rank.emitted) > 50 for rank in ranks)


def two_epochs(reads: bool) -> None:
    """Two epochs of a loop that reads the scale, or not."""
    with Case((30, 20), settings={"window": 8, "lookahead": 4}).loader() as stream:
        for _ in range(2):
            for batch in stream:
                info = odb.pop_step(batch)
                assert info.global_samples
                if reads:
                    assert info.loss_scale >= 0
    assert replace(info, step=7).loss_scale == info.loss_scale
    for plain in (pickle.loads(pickle.dumps(info)), copy.deepcopy(info)):
        assert type(plain) is odb.StepInfo
        assert (plain.step, plain.loss_scale) == (info.step, info.loss_scale)


@pytest.mark.parametrize("reads", [False, True])
def test_a_scale_that_is_never_read_is_warned_of_once(reads: bool) -> None:
    """By each rank, after the first epoch."""
    outcomes = run_ranks(two_epochs, 2, reads)
    values(outcomes)
    for rank, outcome in enumerate(outcomes):
        warnings = [line for line in outcome.output.splitlines() if "loss_scale was not read" in line]
        assert len(warnings) == (not reads)
        assert reads or warnings[0].startswith(f"rank {rank}: ")
