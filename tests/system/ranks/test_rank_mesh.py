"""A device mesh of data-parallel and tensor-parallel dimensions: peers see identical batches, ranks disjoint ones."""

import json
from typing import Any

import pytest
import torch.distributed as dist
from ranks_data import Numbered
from ranks_support import run_ranks, values
from ranks_training import in_order, take
from torch.distributed.device_mesh import init_device_mesh

import odb_stream as odb

SETTINGS = {"budget": odb.Budget(512), "window": 24, "lookahead": 6}


def on_mesh(world: odb.World, *, size: int = 120, first: int = 0, **settings: Any) -> odb.Loader:
    return odb.Loader(odb.Pipeline(odb.FromDataset(Numbered(size, first))), world=world, **{**SETTINGS, **settings})


def mesh_of(shape: tuple[int, ...], names: tuple[str, ...]) -> Any:
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def stream_on_mesh(shape: tuple[int, ...], names: tuple[str, ...], dims: tuple[str, ...]) -> dict[str, Any]:
    """Two epochs, and the rest of the second once more from a state in the middle of it."""
    world = odb.World.from_mesh(mesh_of(shape, names), dims)
    with on_mesh(world) as stream:
        first = take(iter(stream), 1000)
        iterator = iter(stream)
        second = take(iterator, 2)
        state = json.loads(json.dumps(stream.state_dict()))
        second += take(iterator, 1000)
        stream.load_state_dict(state)
        again = take(iter(stream), 1000)
    return {"rank": world.rank, "size": world.size, "first": first, "second": second, "again": again}


def check(outcomes: list[dict[str, Any]], places: list[int]) -> None:
    assert [outcome["rank"] for outcome in outcomes] == places
    by_rank = {outcome["rank"]: outcome for outcome in outcomes}
    assert all(outcome == by_rank[outcome["rank"]] for outcome in outcomes), "peers see identical batches"
    for name in ("first", "second"):
        assert in_order(outcome[name] for outcome in by_rank.values()) == list(range(120))
    assert all(outcome["again"] == outcome["second"][2:] for outcome in outcomes)


def test_peers_of_a_two_by_two_mesh_see_identical_batches() -> None:
    check(values(run_ranks(stream_on_mesh, 4, (2, 2), ("dp", "tp"), ("dp",))), [0, 0, 1, 1])


@pytest.mark.slow
def test_the_data_parallel_dimension_may_come_last_or_be_all_or_none() -> None:
    check(values(run_ranks(stream_on_mesh, 4, (2, 2), ("tp", "dp"), ("dp",))), [0, 1, 0, 1])
    check(values(run_ranks(stream_on_mesh, 4, (2, 2), ("replicate", "shard"), ("replicate", "shard"))), [0, 1, 2, 3])
    check(values(run_ranks(stream_on_mesh, 2, (1, 2), ("dp", "tp"), ("dp",))), [0, 0])


def peers_differ() -> None:
    """Process 3 has other samples than its peer, as many."""
    world = odb.World.from_mesh(mesh_of((2, 2), ("dp", "tp")))
    with on_mesh(world, first=int(dist.get_rank() == 3)) as stream:
        next(iter(stream))


def test_peers_that_drift_apart_are_named_on_every_process() -> None:
    for outcome in run_ranks(peers_differ, 4):
        assert outcome.error == "PeerError"
        assert outcome.text.startswith("processes 2 and 3 share data-parallel rank 1 of 2")


def one_leaves() -> None:
    """Process 1, of data-parallel rank 1, leaves its loop after two steps; its peer and the others learn of it."""
    world = odb.World.from_mesh(mesh_of((2, 2), ("tp", "dp")), ("dp",))
    with on_mesh(world, size=400) as stream:
        for number, batch in enumerate(stream):
            odb.pop_step(batch)
            if dist.get_rank() == 1 and number == 1:
                return


def test_a_process_that_leaves_stops_its_peer_too() -> None:
    outcomes = run_ranks(one_leaves, 4)
    assert [outcome.error for outcome in outcomes] == ["PeerError", "", "PeerError", "PeerError"]
    assert all("rank 1 left" in outcome.text for outcome in outcomes if outcome.error)


def name_a_missing_dimension() -> None:
    odb.World.from_mesh(mesh_of((2,), ("dp",)), ("fsdp",))


def test_a_dimension_that_is_missing_is_refused_by_name() -> None:
    for outcome in run_ranks(name_a_missing_dimension, 2):
        assert outcome.error == "ConfigError"
        assert "['fsdp']" in outcome.text
        assert "('dp',)" in outcome.text
