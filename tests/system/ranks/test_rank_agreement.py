"""What ranks must agree on before the first step: their settings, who they are, and that all of them are there."""

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from ranks_data import Numbered
from ranks_support import run_ranks, values
from ranks_training import Case, in_order, take, watched_epoch

import odb_stream as odb

CASE = Case((40, 50, 30))

DIFFERENT: dict[str, list[Any]] = {
    "budget": [odb.Budget(512), odb.Budget(512, samples=9), odb.Budget(512)],
    "seed": [3, 3, 4],
    "window": [32, 64, 96],
    "lookahead": [8, 8, 9],
    "layout": ["padded", "padded", "packed"],
    "rebalance": [True, False, True],
    "grad_accum": [2, 1, 1],
    "max_bytes": [2**20, 2**20, 2**21],
    "pad_token_id": [0, 1, 0],
    "oversize": ["drop", "error", "error"],
}
"""Of each field, the values on three ranks."""


def refuse_each_field() -> dict[str, str]:
    """For each field the error that this rank gets, and then a loader that works: what differs is each rank's own."""
    errors, rank = {}, dist.get_rank()
    for name, of_rank in DIFFERENT.items():
        with pytest.raises(odb.ConfigError) as caught:
            CASE.loader(**{name: of_rank[rank]})
        errors[name] = str(caught.value)
    with CASE.loader(workers=rank, timeout=100.0 + rank) as stream:
        assert watched_epoch(stream).infos
    return errors


def test_settings_that_differ_are_refused_by_name_on_every_rank() -> None:
    """Fails when the digests are not compared: ranks would plan differently, and hang or train on other batches."""
    ranks = values(run_ranks(refuse_each_field, 3))
    for name, of_rank in DIFFERENT.items():
        other = next(rank for rank, value in enumerate(of_rank) if value != of_rank[0])
        for rank, errors in enumerate(ranks):
            assert errors[name].startswith(f"{name} differs between rank 0 and rank {other}")
            assert f"(on this rank, {rank}, it is {of_rank[rank]!r})" in errors[name]


def start_too_late(rendezvous: str) -> tuple[str, list[list[int]]]:
    """``init_process_group`` after the Loader: every rank would read everything."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    pipeline = odb.Pipeline(odb.FromDataset(Numbered(20)))
    early = odb.Loader(pipeline, budget=odb.Budget(512))
    given_a_world = odb.Loader(pipeline, budget=odb.Budget(512), world=odb.World())
    before = iter(early)
    next(before)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size)
    with pytest.raises(odb.ConfigError) as caught:
        iter(early)
    assert len(watched_epoch(given_a_world).infos) > 0
    early.close()
    given_a_world.close()
    with odb.Loader(pipeline, budget=odb.Budget(512)) as late:
        assert late.samples == 20
        return str(caught.value), take(iter(late), 1000)


def test_a_group_that_starts_after_the_loader_is_an_error(tmp_path: Path) -> None:
    """Unless the loader was given its world. Fails when the world is not checked again."""
    errors, numbers = zip(*values(run_ranks(start_too_late, 2, str(tmp_path / "rendezvous"))), strict=True)
    assert all("torch.distributed was started after this Loader was built" in error for error in errors)
    assert in_order(numbers) == list(range(20))


def test_a_world_of_many_needs_a_running_group() -> None:
    pipeline = odb.Pipeline(odb.FromDataset(Numbered(20)))
    with pytest.raises(odb.ConfigError, match=r"World.size is 2, but torch.distributed is not running"):
        odb.Loader(pipeline, budget=odb.Budget(512), world=odb.World(0, 2))


def claim_another_place() -> None:
    rank, pipeline = dist.get_rank(), odb.Pipeline(odb.FromDataset(Numbered(20)))
    for claimed, size in ((1 - rank, 2), (rank, 3)):
        words = f"rank {claimed} of {size}, but its process group says rank {rank} of 2"
        with pytest.raises(odb.ConfigError, match=words):
            odb.Loader(pipeline, budget=odb.Budget(512), world=odb.World(claimed, size))


def test_a_world_that_contradicts_the_group_is_refused() -> None:
    values(run_ranks(claim_another_place, 2))


def fail_while_building(where: str) -> None:
    """Rank 1 cannot build its Loader, for a reason of its own."""
    bad = dist.get_rank() == 1
    source: Any = odb.Shards("/nowhere/at-all.tar") if bad and where == "source" else odb.FromDataset(Numbered(20))
    stages: list[Any] = [lambda sample: sample] if bad and where == "stage" else []  # no worker can unpickle it
    with odb.Loader(odb.Pipeline(source, *stages), budget=odb.Budget(512), workers=len(stages)) as stream:
        for _ in stream:
            pass


@pytest.mark.parametrize(("where", "own"), [("source", "ShardError"), ("stage", "ConfigError")])
def test_a_rank_that_cannot_build_its_loader_stops_the_others(where: str, own: str) -> None:
    """It raises its own error, and the others do not wait for it forever."""
    outcomes = run_ranks(fail_while_building, 3, where)
    assert [outcome.error for outcome in outcomes] == ["PeerError", own, "PeerError"]
