"""The loop of an accelerate user on every rank, over the cases of ``trainer_cases``."""

from typing import Any

import torch
from accelerate import Accelerator
from ranks_training import Case, EpochRecord, model
from trainer_cases import RATE, Watch, cases, name_ranks, token_mean

import odb_stream as odb
from odb_stream.adapters import accelerate as adapter


def train_all() -> dict[str, EpochRecord]:
    """Train case after case in one process."""
    name_ranks()
    return {name: train(case) for name, case in cases(int(torch.distributed.get_world_size())).items()}


def train(case: Case) -> EpochRecord:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=case.settings["grad_accum"])
    own = model()
    watch = Watch()
    with case.loader() as stream:
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
    return watch.compared(own)
