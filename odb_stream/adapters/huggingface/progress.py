"""Progress of a run in samples over all ranks, and the learning rate that follows it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainingArguments

from odb_stream.errors import ConfigError
from odb_stream.loader import Loader
from odb_stream.sample import StepInfo

WITHOUT_TOTAL = ("constant", "reduce_lr_on_plateau", "greedy")
"""Schedules that do not depend on the length of the run."""

ENDLESS = 10**12
"""More optimizer steps than any run makes: the bound if neither samples nor ``max_steps`` give one."""


@dataclass
class SampleProgress:
    """How far a run is; the same on all ranks.

    ``per_epoch`` counts the samples of an epoch over all ranks, and is None where only reading can tell. ``before``
    counts those that the ``done`` epochs emitted, ``within`` those of the running epoch. ``step`` is the last finished
    step of the running epoch, and None at its start.
    """

    per_epoch: int | None
    epochs: float
    done: int = 0
    before: int = 0
    within: int = 0
    step: int | None = None

    @classmethod
    def of(cls, loader: Loader, epochs: float) -> "SampleProgress":
        """The start of a run."""
        settings = loader.settings
        return cls(settings.quota if settings.closure == "quota" else loader.samples, epochs)

    def restart(self) -> None:
        """Go back to the start of the run."""
        self.done = self.before = self.within = 0
        self.step = None

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Take over what :meth:`plain` gave to a checkpoint."""
        self.done, self.before, self.within = plain["done"], plain["before"], plain["within"]
        self.step = plain["step"]

    def advance(self, step: StepInfo) -> None:
        """Enter the last step of an optimizer step."""
        self.within, self.step = step.samples_seen, step.step

    def end_epoch(self) -> None:
        """Enter the end of the running epoch."""
        self.done += 1
        self.before, self.within, self.step = self.before + self.within, 0, None

    @property
    def samples_seen(self) -> int:
        """Samples that were trained on, over all ranks and epochs."""
        return self.before + self.within

    @property
    def position(self) -> int:
        """Samples behind the run, including those dropped in finished epochs; ``samples_seen`` if that is unknown."""
        if self.per_epoch is None:
            return self.samples_seen
        return self.done * self.per_epoch + min(self.within, self.per_epoch)

    @property
    def total(self) -> int | None:
        """Samples of the whole run."""
        return None if self.per_epoch is None else round(self.epochs * self.per_epoch)

    @property
    def epoch(self) -> float:
        """Finished epochs, with the fraction of the running one if the size of an epoch is known."""
        return self.done + (min(self.within / self.per_epoch, 1.0) if self.per_epoch else 0.0)

    @property
    def finished(self) -> bool:
        """Whether the requested epochs are done."""
        return self.done >= math.ceil(self.epochs) or (self.total is not None and self.position >= self.total)

    @property
    def epochs_left(self) -> int:
        """Remaining loops over the loader, including the running one."""
        return 0 if self.finished else math.ceil(self.epochs) - self.done

    def most_steps(self, max_steps: int) -> int:
        """A bound on optimizer steps: every step has at least one sample."""
        if max_steps > 0:
            return max_steps
        return ENDLESS if self.per_epoch is None else max(1, self.per_epoch * math.ceil(self.epochs))

    def plain(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"done": self.done, "before": self.before, "within": self.within, "step": self.step}


def check_schedule(args: TrainingArguments, progress: SampleProgress, by: str) -> None:
    """Raise a ConfigError if the learning rate cannot follow the samples, or steps, as requested."""
    if by not in ("samples", "steps"):
        raise ConfigError(f"schedule is {by!r}, but must be 'samples' or 'steps'")
    name = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    if name in WITHOUT_TOTAL:
        return
    if by == "steps":
        if args.max_steps <= 0:
            raise ConfigError(
                f"schedule is 'steps' and max_steps is {args.max_steps}: the number of steps is unknown before the "
                "data are read, so set max_steps, or leave schedule='samples'"
            )
    elif progress.total is None:
        raise ConfigError(
            f"lr_scheduler_type {name!r} needs to know the number of samples in the run, which is unknown: write "
            "an index beside every shard (`odb-stream index`), or set schedule='steps' with max_steps, or "
            "lr_scheduler_type='constant'"
        )
    elif args.warmup_steps >= 1:
        raise ConfigError(
            f"warmup_steps is {args.warmup_steps:g} steps, but the learning rate follows samples: give a share of the "
            "run, such as warmup_steps=0.03, or set schedule='steps' with max_steps"
        )


def follow_samples(scheduler: Any, progress: Callable[[], int]) -> Any:
    """Make a scheduler of transformers, built for a number of samples, follow ``progress()`` instead of its steps."""
    if isinstance(scheduler, LambdaLR):
        # The public attribute of torch's scheduler. transformers offers no other way in: it builds the factors itself.
        scheduler.lr_lambdas = [_by(progress, factor) for factor in scheduler.lr_lambdas]
    return scheduler


def _by(progress: Callable[[], int], factor: Callable[[int], float]) -> Callable[[int], float]:
    return lambda _step: factor(progress())
