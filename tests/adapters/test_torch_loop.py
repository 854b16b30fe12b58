"""A plain loop under DDP, FSDP2 and on a mesh trains as one process would over the same samples."""

from itertools import chain

import pytest
import torch
from ranks_support import run_ranks, values
from torch_support import Model, Plan, Trained, alone, fresh_model, largest_error, train

import odb_stream as odb
from odb_stream.adapters.torch import Meter, SampleSchedule, evaluate, whole_windows

MOST_ERROR = 1e-9

PLANS = {
    2: {
        "ddp": Plan((90, 40)),
        "ddp, packed, three steps an update": Plan((90, 40), settings={"layout": "packed", "grad_accum": 3}),
        "fsdp": Plan((90, 40), wrap="fsdp"),
        "fsdp, three steps an update, idle ranks": Plan(
            (60, 3), "fsdp", settings={"grad_accum": 3, "rebalance": False}
        ),
    },
    4: {"ddp, two steps an update": Plan((50, 3, 20, 0), settings={"grad_accum": 2, "rebalance": False})},
}


def together(updates: list[list[list[int]]]) -> list[list[int]]:
    """The samples of each update over all ranks."""
    return [list(chain.from_iterable(numbers)) for numbers in zip(*updates, strict=True)]


def train_plans(plans: dict[str, Plan]) -> dict[str, Trained]:
    """All plans one after the other on this rank."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    found = {}
    for name, plan in plans.items():
        model = fresh_model()
        wrapped = DistributedDataParallel(model) if plan.wrap == "ddp" else fully_shard(model)
        with plan.loader() as loader:
            found[name] = train(plan, wrapped, loader)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("size", PLANS)
def test_every_update_has_the_gradient_of_one_process(size: int) -> None:
    ranks = values(run_ranks(train_plans, size, PLANS[size]))
    for name, plan in PLANS[size].items():
        of_ranks = [rank[name] for rank in ranks]
        single = alone(together([one.updates for one in of_ranks]))
        for one in of_ranks:
            for ours, theirs in zip(one.gradients, single.gradients, strict=True):
                assert largest_error(ours, theirs) < MOST_ERROR, name
            assert one.norms == pytest.approx(single.norms, abs=MOST_ERROR)
            assert largest_error(one.parameters, single.parameters) < MOST_ERROR, name
        if plan.settings.get("grad_accum", 1) > 1:
            assert of_ranks[0].short, f"{name}: a short last window is among the updates"
        if "idle" in name:
            assert sum(one.idle for one in of_ranks)


def train_on_mesh() -> tuple[int, Trained]:
    """FSDP2 over one dimension of a 2 x 2 mesh, tensor parallelism over the other."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    plan = Plan((70, 30), steps=8)
    model = parallelize_module(fresh_model(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    sharded = fully_shard(model, mesh=mesh["dp"])
    world = odb.World.from_mesh(mesh)
    with plan.loader(world) as loader:
        return world.rank, train(plan, sharded, loader)


@pytest.mark.slow
def test_a_mesh_of_fsdp_and_tensor_parallelism_trains_as_one_process() -> None:
    told = values(run_ranks(train_on_mesh, 4))
    by_rank = dict(told)
    single = alone(together([by_rank[rank].updates for rank in (0, 1)]))
    for rank, trained in told:
        assert trained.updates == by_rank[rank].updates, "peers see identical batches"
        assert largest_error(trained.parameters, single.parameters) < MOST_ERROR
        assert trained.norms == pytest.approx(single.norms, abs=MOST_ERROR)


def eval_and_schedule(shares: tuple[int, ...]) -> dict[str, object]:
    """The loss of one epoch over all ranks, the learning rates by samples seen, and the meter beside a full sum."""
    model = fresh_model()
    plan = Plan(shares, settings={"closure": "join"})
    with plan.loader() as loader:
        loss = evaluate(model, loader)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    rates = {}
    meter = Meter(budget=256)
    with plan.loader() as loader:
        schedule = SampleSchedule(optimizer, lambda x: 1 - x, samples=2 * sum(shares), samples_per_epoch=sum(shares))
        for batch in loader:
            step = odb.pop_step(batch)
            with torch.no_grad():
                meter.add(step, model(**batch).loss)
            schedule.advance(step)
            rates[step.samples_seen] = optimizer.param_groups[0]["lr"]
    figures = meter.read()
    report = loader.report()["global"]
    return {"loss": loss, "rates": rates, "figures": figures, "report": report, "again": meter.read()["loss"]}


@pytest.mark.slow
def test_evaluation_schedule_and_meter_are_the_same_for_any_number_of_ranks() -> None:
    one = values(run_ranks(eval_and_schedule, 1, (100,)))[0]
    two = values(run_ranks(eval_and_schedule, 2, (70, 30)))
    for told in (*two, one):
        assert told["loss"] == pytest.approx(one["loss"], abs=MOST_ERROR)
        assert told["figures"]["loss"] == pytest.approx(one["loss"], abs=MOST_ERROR), "of all steps of an epoch"
        assert all(rate == pytest.approx(2.0 * (1 - seen / 200)) for seen, rate in told["rates"].items())
        assert max(told["rates"]) == 100
        assert told["figures"]["padding"] == pytest.approx(told["report"]["padding_ratio"])
        assert told["figures"]["utilisation"] == pytest.approx(told["report"]["real_utilisation"])
        assert told["again"] == 0.0, "each reading begins anew"


def test_the_last_window_is_filled_with_batches_that_count_for_nothing() -> None:
    with odb.Loader(
        odb.Pipeline(odb.FromDataset([{"input_ids": [1, 2, 3]}] * 10)), budget=odb.Budget(6), grad_accum=3
    ) as loader:
        plain = [odb.pop_step(batch) for batch in loader]
        filled = [(odb.pop_step(batch), batch) for batch in whole_windows(loader, 3)]
    assert (len(plain), len(filled)) == (5, 6)
    info, batch = filled[-1]
    assert (info.idle, info.loss_scale, info.accum_index, info.accum_last, info.samples) == (True, 0.0, 2, True, 0)
    assert torch.equal(batch["input_ids"], filled[-2][1]["input_ids"])
    assert [step.accum_last for step, _ in filled] == [False, False, True] * 2
    assert sum(step.samples for step, _ in filled) == 10


def test_a_schedule_without_a_number_of_samples_says_where_to_get_it() -> None:
    optimizer = torch.optim.SGD(Model().parameters(), lr=1.0)
    with pytest.raises(odb.ConfigError, match="odb-stream index"):
        SampleSchedule(optimizer, lambda share: share, samples=None, samples_per_epoch=3)
