"""The Lightning adapter in one process: exact loss, what it logs, refuses, saves and loads."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy
from ranks_support import run_ranks, values
from ranks_training import RATE, Case, EpochRecord, Watch, loss_of_all, losses, model
from trainer_cases import DEADLINE, alone, check_alone, check_ranks, name_ranks

import odb_stream as odb
from odb_stream.adapters.lightning import ExactLoss, LoaderDataModule
from odb_stream.adapters.torch import SampleSchedule

SAMPLES = 60
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
        return losses(self.model(batch["input_ids"]), batch["labels"], "mean")

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        return losses(self.model(batch["input_ids"]), batch["labels"], "mean")

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

def data(steps: int = 1, *, evaluation: bool = False) -> LoaderDataModule:
    return LoaderDataModule(
        lambda: alone(SAMPLES, grad_accum=steps), (lambda: alone(23, shuffle=False)) if evaluation else None
    )


class Logged(Callback):
    """Keeps what was logged after each update."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.datamodule.training.step.accum_last:
            self.rows.append({name: float(value) for name, value in trainer.callback_metrics.items()})


@pytest.mark.parametrize("steps", [1, 3])
def test_gradients_and_logs_are_those_of_the_whole_window_and_epochs_end_by_themselves(steps: int) -> None:
    """Fails when the loss is not scaled, the accumulation still divides it, or the mean of steps is logged."""
    module, logged = Module(watch := Watch()), Logged()
    run = trainer(steps, callbacks=[exact := ExactLoss(), logged], max_epochs=2, log_every_n_steps=1)
    run.fit(module, datamodule=(given := data(steps)))
    check_alone(watch, module.model, steps)
    assert [info["epoch"] for info in watch.infos if info["step"] == 0] == [0, 1]
    assert exact.samples == 2 * SAMPLES == logged.rows[-1]["train/samples"]
    report = given.training.loader.report()
    assert report["emitted"] == 2 * SAMPLES
    assert report["abandoned"] == 0
    first, infos = logged.rows[0], watch.infos[:steps]
    assert len({info["supervised_tokens"] for info in infos}) == steps, "steps weigh differently"
    numbers = [number for step in watch.numbers[:steps] for number in step]
    assert first["train/loss"] == pytest.approx(loss_of_all(Module().model, numbers), rel=1e-6)
    real, padded = (sum(info[name] for info in infos) for name in ("tokens", "padded_tokens"))
    assert first["train/padding"] == pytest.approx(1 - real / padded, rel=1e-5)
    assert first["train/utilisation"] == pytest.approx(real / (steps * 256), rel=1e-5)
    assert first["train/tokens_per_second"] > 0


def train(case: Case) -> EpochRecord:
    name_ranks()
    watch = Watch()
    module = Module(watch)
    ranks = torch.distributed.get_world_size()
    trainer(case.settings["grad_accum"], ranks).fit(module, datamodule=LoaderDataModule(case.loader))
    return watch.compared(module.model)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_train_as_one_process(ranks: int) -> None:
    check_ranks(train, ranks)


def test_a_logger_is_given_the_figures_as_often_as_asked(tmp_path: Path) -> None:
    run = trainer(logger=CSVLogger(tmp_path, name="", version=""), log_every_n_steps=4, max_steps=500)
    run.fit(Module(), datamodule=data())
    assert 5 < run.global_step < 500, "the steps asked for are only an upper bound"
    table = (tmp_path / "metrics.csv").read_text().splitlines()
    assert {"train/loss", "train/padding", "train/samples"} <= set(table[0].split(","))
    assert len(table) == 1 + run.global_step // 4


def test_the_steps_asked_for_are_an_upper_bound() -> None:
    module = Module(watch := Watch())
    run = trainer(max_steps=5, max_epochs=1)
    run.fit(module, datamodule=data())
    assert run.global_step == len(watch.infos) == 5


def validate() -> float:
    """The loss over 41 samples that the ranks share, on rank 0 and 1 alike; some steps are idle."""
    name_ranks()
    data = LoaderDataModule(
        alone, lambda: alone(41, shuffle=False, rebalance=False, budget=odb.Budget(1024), window=64)
    )
    (logged,) = trainer(ranks=2).validate(Module(), datamodule=data, verbose=False)
    return float(logged["val/loss"])


@pytest.mark.slow
def test_validation_is_the_mean_over_all_tokens_whatever_the_ranks() -> None:
    """Fails when steps are averaged, or idle ones counted."""
    expected = loss_of_all(Module().model, range(41))
    ranks = values(run_ranks(validate, 2, deadline=DEADLINE))
    given = LoaderDataModule(alone, lambda: alone(41, shuffle=False))
    (logged,) = trainer().validate(Module(), datamodule=given, verbose=False)
    assert [logged["val/loss"], *ranks] == pytest.approx([expected] * 3, rel=1e-6)


def test_a_learning_rate_by_samples_follows_the_samples() -> None:
    seen: list[tuple[float, int]] = []

    class Rates(Callback):
        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            rate = trainer.optimizers[0].param_groups[0]["lr"]
            seen.append((rate, trainer.datamodule.training.step.samples_seen))

    def schedule(optimizer: torch.optim.Optimizer) -> SampleSchedule:
        return SampleSchedule(optimizer, lambda share: 1 - share, samples=SAMPLES, samples_per_epoch=SAMPLES)

    trainer(callbacks=[ExactLoss(schedule), Rates()]).fit(Module(), datamodule=data())
    assert [rate for rate, _ in seen] == pytest.approx([0.5 * (1 - samples / SAMPLES) for _, samples in seen])


class Saves(Callback):
    """Saves a checkpoint wherever trainers do, at the given steps."""

    def __init__(self, folder: Path, steps: set[int]) -> None:
        self.folder, self.steps = folder, steps
        self.hooks: dict[Path, str] = {}

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self.save(trainer, "batch")

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        self.save(trainer, "validation")

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        self.save(trainer, "epoch")

    def save(self, trainer: Trainer, hook: str) -> None:
        step = trainer.datamodule.training.step
        if step.epoch == 0 and step.step in self.steps:
            path = self.folder / f"{hook}-{step.step}.ckpt"
            trainer.save_checkpoint(path)
            self.hooks[path] = hook


@pytest.mark.slow
@pytest.mark.parametrize("bound", [-1, 1000])
def test_a_run_goes_on_exactly_from_a_checkpoint_of_any_hook(tmp_path: Path, bound: int) -> None:
    """Inside a window, after it, in the first window, after the last batch, after a validation, after the epoch.

    With a bound of steps, Lightning counts epochs in another way. Fails when the loader's state is that of what was
    read ahead, or Lightning goes on at another place than the loader.
    """

    def fit(callbacks: list[Callback], path: Path | None = None) -> tuple[Watch, Module, Trainer]:
        module = Module(Watch())
        settings = {"max_epochs": 2, "max_steps": bound, "val_check_interval": 6 if bound < 0 else 1.0}
        run = trainer(3, callbacks=[exact := ExactLoss(), *callbacks], **settings)
        run.fit(module, datamodule=data(3, evaluation=True), ckpt_path=path, weights_only=True)
        assert exact.samples == 2 * SAMPLES
        return module.watch, module, run

    last = sum(1 for _ in alone(SAMPLES, grad_accum=3)) - 1
    whole, trained, ended = fit([saves := Saves(tmp_path, {1, 5, 6, last})])
    assert set(saves.hooks.values()) == {"batch", "validation", "epoch"}
    assert len(saves.hooks) == 6
    assert last % 3 < 2
    for path in saves.hooks:
        rest, module, run = fit([], path)
        assert rest.numbers == whole.numbers[-len(rest.numbers) :], path
        assert len(rest.gradients) == ended.global_step - torch.load(path)["global_step"], path
        assert torch.equal(module.model[1].weight, trained.model[1].weight), path
        assert (run.global_step, run.current_epoch) == (ended.global_step, 2), path


def save(folder: str) -> list[int]:
    """The numbers of two updates, after which a checkpoint of both ranks was written."""
    name_ranks()
    module = Module(Watch())
    made = trainer(ranks=2, max_steps=2)
    made.fit(module, datamodule=LoaderDataModule(alone))
    made.save_checkpoint(f"{folder}/two.ckpt")
    steps = zip(module.watch.infos, module.watch.numbers, strict=True)
    return [number for info, numbers in steps if not info["idle"] for number in numbers]


@pytest.mark.slow
def test_a_checkpoint_of_two_ranks_is_gone_on_from_by_one(tmp_path: Path) -> None:
    seen = [number for numbers in values(run_ranks(save, 2, str(tmp_path), deadline=DEADLINE)) for number in numbers]
    module = Module(watch := Watch())
    trainer(max_steps=1000).fit(module, datamodule=LoaderDataModule(alone), ckpt_path=tmp_path / "two.ckpt")
    assert sorted(seen + [number for numbers in watch.numbers for number in numbers]) == list(range(100))


def test_loaders_are_asked_for_anew_without_losing_an_epoch() -> None:
    """Lightning then begins to read an epoch that it does not train."""
    module = Module(watch := Watch())
    trainer(max_epochs=3, reload_dataloaders_every_n_epochs=1).fit(module, datamodule=(given := data()))
    assert [info["epoch"] for info in watch.infos if info["step"] == 0] == [0, 1, 2]
    assert given.training.loader.report()["emitted"] == 3 * SAMPLES


class Manual(Module):
    automatic_optimization = False


class Silent(Module):
    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Any:
        return None


class Wrapped(LoaderDataModule):
    def train_dataloader(self) -> Any:
        return list(super().train_dataloader())


def refusals() -> Iterator[tuple[str, Callable[[], None]]]:
    yield "accumulate_grad_batches is 2 and the Loader's grad_accum is 1", lambda: fit(steps=2)
    yield "has no ExactLoss", lambda: fit(callbacks=[])
    yield "needs a LoaderDataModule", lambda: trainer().fit(Module(), train_dataloaders=[1])
    yield "automatic_optimization is False", lambda: fit(Manual())
    yield "limit_train_batches .* is 3", lambda: fit(limit_train_batches=3)
    yield "must make a Loader", lambda: trainer().fit(Module(), datamodule=LoaderDataModule(list))  # type: ignore[arg-type]
    yield "training_step returned", lambda: fit(Silent())
    yield "instead of the LoaderDataModule's stream", lambda: trainer().fit(Module(), datamodule=Wrapped(alone))
    counting = [ExactLoss(), GradientAccumulationScheduler({0: 1, 1: 2})]
    yield "no GradientAccumulationScheduler", lambda: fit(callbacks=counting, max_epochs=2)


def fit(module: Module | None = None, **settings: Any) -> None:
    trainer(**settings).fit(module or Module(), datamodule=data())


@pytest.mark.parametrize(("message", "run"), list(refusals()))
def test_what_does_not_go_with_a_loader_is_refused_by_name(message: str, run: Callable[[], None]) -> None:
    with pytest.raises(odb.ConfigError, match=message):
        run()
