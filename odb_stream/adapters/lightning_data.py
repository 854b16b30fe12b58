"""Lightning's side of the data: a LightningDataModule over Loaders, which carries the state of every rank."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from lightning.pytorch import LightningDataModule, Trainer

from odb_stream.checkpoint import merge
from odb_stream.errors import ConfigError
from odb_stream.loader import Loader
from odb_stream.nodes.collate import Batch, pop_step
from odb_stream.sample import StepInfo


class Stream:
    """What Lightning iterates over: the batches of a Loader, their step infos kept apart.

    It has no length, no state and no batch size, so that there is nothing that Lightning could shard, skip or save for
    one rank only. Lightning starts iterating more often than it trains: where no batch of an epoch was trained on, the
    next iteration is that epoch again.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.step: StepInfo | None = None
        """The step that is trained or evaluated now, or was last; None before the first of an epoch."""
        self.updates = 0
        """Updates of the optimizer before :attr:`step`."""
        self.followed = False
        """Whether an ExactLoss takes the step infos."""
        self._ahead: deque[StepInfo] = deque()
        self._start: dict[str, Any] | None = None
        self._first = 0
        self._exhausted = False

    def __iter__(self) -> Iterator[Batch]:
        if self._start is not None and self.step is None:
            self.loader.load_state_dict(self._start)
        self._start, self._exhausted, self.step = self.loader.state_dict(), False, None
        self._ahead.clear()
        for batch in self.loader:
            self._ahead.append(pop_step(batch))
            yield batch
        self._exhausted = True

    def take(self) -> StepInfo:
        """The info of the batch that comes next: Lightning reads ahead, in order."""
        taken = self._ahead.popleft()
        if self.step is None:
            self._first = taken.step
        self.step = taken
        return taken

    @property
    def ended(self) -> bool:
        """Whether :attr:`step` is the last of its epoch."""
        return self._exhausted and not self._ahead

    def state_dict(self, behind: int = 0) -> dict[str, Any]:
        """The loader's state ``behind`` steps before the end of :attr:`step`, whatever was read ahead.

        After the last step of an epoch it is the start of the next.
        """
        if self.step is None:
            return self._start or self.loader.state_dict()
        if not behind and self.ended:
            return self.loader.state_dict()
        number = self.step.step - behind
        if number < self._first and self._start is not None:
            return self._start
        return self.loader.state_dict(number)


class LoaderDataModule(LightningDataModule):
    """Builds Loaders when all ranks have met, gives them to Lightning as they are, and carries the state of each rank.

    Args:
        train: makes the Loader to train on; called on every rank, after Lightning has started torch.distributed.
        evaluation: makes the Loader to validate on, with ``closure="join"`` and a source without shuffling.

    ``training`` and ``evaluation`` are the streams over them, from ``setup`` on; their ``loader`` is the Loader and
    their ``step`` the StepInfo of the present batch. A checkpoint holds the states of all ranks. On another number of
    ranks they are merged when it is loaded (see :func:`odb_stream.checkpoint.merge`).

    Raises:
        ConfigError: from ``setup``, where the Trainer's settings do not go with the Loader; names setting and way out.
        StateError: when a checkpoint does not fit.
    """

    training: Stream | None = None
    evaluation: Stream | None = None

    def __init__(self, train: Callable[[], Loader], evaluation: Callable[[], Loader] | None = None) -> None:
        super().__init__()
        self._make_training, self._make_evaluation = train, evaluation

    def setup(self, stage: str) -> None:
        """Build what the stage needs and check that the Trainer leaves it alone."""
        trainer = _trainer_of(self)
        if stage == "fit":
            self.training = Stream(_made(self._make_training, "train"))
            check_trainer(trainer, self.training.loader)
        if stage in ("fit", "validate") and self._make_evaluation is not None:
            self.evaluation = Stream(_made(self._make_evaluation, "evaluation"))

    @property
    def behind(self) -> int:
        """Steps since the last update: a checkpoint holds no gradients, so it leaves them out, to be made again."""
        if self.training is None or self.training.step is None:
            return 0
        step = self.training.step
        stepped = step.accum_last and _trainer_of(self).global_step > self.training.updates
        return 0 if stepped else step.accum_index + 1

    def train_dataloader(self) -> Stream:
        """The stream over the training loader."""
        if self.training is None:
            raise ConfigError("there is no training loader outside of Trainer.fit")
        return _followed(self.training)

    def val_dataloader(self) -> Any:
        """The stream over the evaluation loader; no loader at all where none was given."""
        return [] if self.evaluation is None else _followed(self.evaluation)

    def teardown(self, stage: str) -> None:
        """Close the loaders; their reports and states can still be read."""
        del stage
        for stream in (self.training, self.evaluation):
            if stream is not None:
                stream.loader.close()

    def state_dict(self) -> dict[str, Any]:
        """The states of all ranks after the last update, equal on all ranks, which must all call it."""
        if self.training is None:
            return {}
        states: list[Any] = [self.training.state_dict(self.behind)]
        ranks = self.training.loader.world.size
        if ranks > 1:
            states = states * ranks
            dist.all_gather_object(states, states[0])
        return {"ranks": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where the checkpoint was saved; all ranks load the same checkpoint."""
        if self.training is None:
            return
        loader, states = self.training.loader, state_dict["ranks"]
        same = len(states) == loader.world.size
        loader.load_state_dict(states[loader.world.rank] if same else merge(states))


def check_trainer(trainer: Trainer, loader: Loader) -> None:
    """Raise a ConfigError that names the first setting of the Trainer that does not go with the Loader."""
    expected, given = loader.settings.grad_accum, trainer.accumulate_grad_batches
    ranks = loader.world.size
    if given != expected:
        raise ConfigError(
            f"Trainer.accumulate_grad_batches is {given} and the Loader's grad_accum is {expected}: give both the same "
            "number"
        )
    if ranks != trainer.world_size:
        raise ConfigError(
            f"the Loader was built for {ranks} ranks, but Lightning runs {trainer.world_size}: build it in the "
            "function that LoaderDataModule is given, and let each process have data of its own (DDP or FSDP)"
        )
    if trainer.strategy.handles_gradient_accumulation:
        raise ConfigError(
            f"{type(trainer.strategy).__name__} divides the loss and counts micro-steps by itself: use DDP or FSDP"
        )
    if isinstance(trainer.limit_train_batches, int) and not setting(trainer, "fast_dev_run"):
        raise ConfigError(
            f"limit_train_batches (or overfit_batches) is {trainer.limit_train_batches}: an epoch ends by itself; "
            "bound the run by max_steps"
        )


def setting(trainer: Trainer, name: str) -> Any:
    """A public setting of a Trainer, of those that its class does not declare."""
    return getattr(trainer, name)


def _made(make: Callable[[], Loader], name: str) -> Loader:
    loader = make()
    if not isinstance(loader, Loader):
        raise ConfigError(f"{name} of LoaderDataModule must make a Loader, not {loader!r}")
    return loader


def _followed(stream: Stream) -> Stream:
    if not stream.followed:
        raise ConfigError("the Trainer has no ExactLoss among its callbacks, which scales the loss: add one")
    return stream


def _trainer_of(data: LightningDataModule) -> Trainer:
    if data.trainer is None:
        raise ConfigError("LoaderDataModule is set up by a Trainer: give it to Trainer.fit or Trainer.validate")
    return data.trainer
