"""The loop of an accelerate user on every rank, over the cases of ``trainer_cases``."""

from itertools import islice
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator
from ranks_training import RATE, Case, EpochRecord, Watch, model, numbers_of
from trainer_cases import alone, name_ranks, token_mean

import odb_stream as odb
from odb_stream.adapters import accelerate as adapter
from odb_stream.adapters.torch import evaluate


def train(case: Case) -> EpochRecord:
    name_ranks()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=case.settings["grad_accum"])
    own = model()
    watch = Watch()
    with case.loader() as stream:
        train_epoch(accelerator, stream, own, watch)
    return watch.compared(own)


def train_epoch(accelerator: Accelerator, stream: odb.Loader, own: Any, watch: Watch) -> None:
    """One epoch, as a user writes it; ``own`` is the model that accelerate wraps."""
    optimizer: Any = torch.optim.SGD(own.parameters(), lr=RATE)
    loader, wrapped, optimizer = adapter.prepare(accelerator, stream, own, optimizer)
    assert loader is stream
    for batch in loader:
        step = odb.pop_step(batch)
        with adapter.accumulate(accelerator, step, wrapped) as backward:
            backward(token_mean(wrapped(batch["input_ids"]), batch))
            watch.step(step, batch)
            if accelerator.sync_gradients:
                watch.update(own)
            optimizer.step()
            optimizer.zero_grad()


class Scored(torch.nn.Module):
    """The model with its loss, as transformers models return it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = model()

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, **others: Any) -> Any:
        return SimpleNamespace(loss=token_mean(self.model(input_ids), {"labels": labels}))


def evaluate_and_save(folder: str, steps: int) -> tuple[float, list[int]]:
    """The loss over 41 samples, two of the ranks' steps in training, and the state after them in a folder."""
    name_ranks()
    accelerator = Accelerator(cpu=True)
    with alone(41, shuffle=False, rebalance=False, budget=odb.Budget(1024)) as held_out:
        scored = accelerator.prepare(Scored())
        loss = evaluate(scored, held_out)
    with alone() as stream:
        adapter.prepare(accelerator, stream)
        seen = [n for batch in islice(stream, steps) if odb.pop_step(batch).samples for n in numbers_of(batch)]
        accelerator.save_state(folder)
        return loss, seen


def unnamed() -> None:
    """Ranks that accelerate does not see."""
    with alone() as stream:
        adapter.prepare(Accelerator(cpu=True), stream)
