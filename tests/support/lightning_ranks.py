"""Lightning's Trainer on every rank, over the cases of ``trainer_cases``."""

import logging
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from ranks_training import RATE, Case, EpochRecord, Watch, model
from trainer_cases import alone, name_ranks, token_mean

import odb_stream as odb
from odb_stream.adapters.lightning import ExactLoss, LoaderDataModule

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


class Module(LightningModule):
    """A user's module: it returns the loss of its model and knows nothing of ranks or steps."""

    def __init__(self, watch: Watch | None = None) -> None:
        super().__init__()
        self.model = model()
        self.watch = watch

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        if self.watch is not None:
            self.watch.step(self.trainer.datamodule.training.step, batch)
        return token_mean(self.model(batch["input_ids"]), batch)

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        return token_mean(self.model(batch["input_ids"]), batch)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if self.watch is not None:
            self.watch.update(self.model)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.model.parameters(), lr=RATE)


def trainer(steps: int = 1, ranks: int = 1, **settings: Any) -> Trainer:
    """A quiet Trainer, by DDP where there are several ranks."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    strategy = DDPStrategy(process_group_backend="gloo") if ranks > 1 else "auto"
    given = {"callbacks": [ExactLoss()], "max_epochs": 1, **QUIET, **settings}
    return Trainer(accumulate_grad_batches=steps, strategy=strategy, devices=ranks, **given)


def train(case: Case) -> EpochRecord:
    name_ranks()
    watch = Watch()
    module = Module(watch)
    ranks = torch.distributed.get_world_size()
    trainer(case.settings["grad_accum"], ranks).fit(module, datamodule=LoaderDataModule(case.loader))
    return watch.compared(module.model)


def validate() -> float:
    """The loss over 41 samples that the ranks share, on rank 0 and 1 alike; some steps are idle."""
    name_ranks()
    data = LoaderDataModule(
        alone, lambda: alone(41, shuffle=False, rebalance=False, budget=odb.Budget(1024), window=64)
    )
    (logged,) = trainer(ranks=2).validate(Module(), datamodule=data, verbose=False)
    return float(logged["val/loss"])


def save(folder: str) -> list[int]:
    """The numbers of two updates, after which a checkpoint of both ranks was written."""
    name_ranks()
    module = Module(Watch())
    made = trainer(ranks=2, max_steps=2)
    made.fit(module, datamodule=LoaderDataModule(alone))
    made.save_checkpoint(f"{folder}/two.ckpt")
    steps = zip(module.watch.infos, module.watch.numbers, strict=True)
    return [number for info, numbers in steps if not info["idle"] for number in numbers]
