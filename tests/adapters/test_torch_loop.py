"""A plain loop under DDP, FSDP2 and on a mesh trains as one process would over the same samples."""

from typing import Any

import pytest
import torch
from ranks_support import run_ranks, values
from ranks_training import RATE, Case, EpochRecord, Watch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from trainer_cases import SMALL, Scored, scored_loss

import odb_stream as odb
from odb_stream.adapters.torch import Meter, SampleSchedule, clip_grad_norm, evaluate, sync_when_due, whole_windows

MOST_ERROR = 1e-9
CLIP = 0.3

IDLE = {**SMALL, "rebalance": False}
PLANS = {
    2: {
        "ddp": Case((90, 40), 2, settings=SMALL),
        "ddp, packed, three steps an update": Case(
            (90, 40), 4, settings={**SMALL, "layout": "packed", "grad_accum": 3}
        ),
        "fsdp": Case((90, 40), 2, settings=SMALL),
        "fsdp, three steps an update, idle ranks": Case((60, 3), 4, settings={**IDLE, "grad_accum": 3}),
    },
    4: {"ddp, two steps an update": Case((57, 3, 20, 0), 4, settings={**IDLE, "grad_accum": 2})},
}


def train(case: Case, model: Any, world: odb.World | None = None, peers: int = 1) -> EpochRecord:
    """The loop of the adapter's docstring, watched, and the comparison with one process."""
    optimizer, watch, norms = torch.optim.SGD(model.parameters(), lr=RATE), Watch(), []
    with case.loader(world=world) as loader:
        for _ in range(int(case.epochs)):
            for batch in loader:
                step = odb.pop_step(batch)
                watch.step(step, batch)
                with sync_when_due(model, step):
                    (model(**batch).loss * step.loss_scale).backward()
                if step.accum_last:
                    watch.update(model)
                    norms.append(clip_grad_norm(model.parameters(), CLIP))
                    optimizer.step()
                    optimizer.zero_grad()
    # The gradients before clipping are compared, and clipping is a lower rate: that of the norm, which is theirs.
    assert norms == pytest.approx([float(gradient.norm()) for gradient in watch.gradients], abs=MOST_ERROR)
    assert min(norms) < CLIP < max(norms), "some updates are clipped"
    rates = [RATE * min(1.0, CLIP / (norm + 1e-6)) for norm in norms]
    return watch.compared(model, peers=peers, alone=Scored(), mean_loss=scored_loss, rates=rates)


def train_plans(plans: dict[str, Case]) -> dict[str, EpochRecord]:
    wraps = {"ddp": DistributedDataParallel, "fsdp": fully_shard}
    return {name: train(case, wraps[name.split(",")[0]](Scored())) for name, case in plans.items()}


@pytest.mark.slow
@pytest.mark.parametrize("size", PLANS)
def test_every_update_has_the_gradient_of_one_process(size: int) -> None:
    ranks = values(run_ranks(train_plans, size, PLANS[size]))
    for name, case in PLANS[size].items():
        first = ranks[0][name]
        first.check(MOST_ERROR)
        updates = [info["accum_index"] for info in first.infos if info["accum_last"]]
        assert len(updates) >= 14
        assert len({*updates}) > 1 or "grad_accum" not in case.settings, "a short last window is among the updates"
        if "rebalance" in case.settings:
            assert any(info["idle"] for rank in ranks for info in rank[name].infos)


def train_on_mesh() -> EpochRecord:
    """FSDP2 over one dimension of a 2 x 2 mesh, tensor parallelism over the other."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = parallelize_module(Scored(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    sharded = fully_shard(model, mesh=mesh["dp"])
    return train(Case((70, 30), settings=SMALL), sharded, odb.World.from_mesh(mesh), peers=2)


@pytest.mark.slow
def test_a_mesh_of_fsdp_and_tensor_parallelism_trains_as_one_process() -> None:
    records = values(run_ranks(train_on_mesh, 4))
    records[0].check(MOST_ERROR)
    numbers = [record.numbers for record in records]
    assert numbers[0] == numbers[1] != numbers[2] == numbers[3], "peers see identical batches"


def eval_and_schedule(shares: tuple[int, ...]) -> dict[str, object]:
    """The loss of one epoch over all ranks, the learning rates by samples seen, and the meter beside a full sum."""
    model, case = Scored(), Case(shares, settings=SMALL)
    with case.loader() as loader:
        loss = evaluate(model, loader)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    rates = {}
    meter = Meter(budget=256)
    with case.loader() as loader:
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
    optimizer = torch.optim.SGD(Scored().parameters(), lr=1.0)
    with pytest.raises(odb.ConfigError, match="odb-stream index"):
        SampleSchedule(optimizer, lambda share: share, samples=None, samples_per_epoch=3)
