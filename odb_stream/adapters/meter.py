"""What a training or evaluation run did, over all ranks: loss by tokens, padding, utilisation, speed."""

import time
from typing import Any

import torch
import torch.distributed as dist

from odb_stream.batching.totals import padding_ratio, utilisation
from odb_stream.sample import StepInfo


class Meter:
    """Figures of all ranks since they were last read.

    Only loss and padded tokens have to be summed over ranks, once in :meth:`read`: every step's info holds the other
    totals of all ranks.

    Args:
        budget: tokens of the loader's budget, for the utilisation.
        device: where the process group's collectives take tensors.
        group: the process group to sum over; None takes the default group.
        ranks: data-parallel ranks, where several processes share one; None counts each process as a rank.
    """

    def __init__(
        self, *, budget: int, device: torch.device | str = "cpu", group: Any = None, ranks: int | None = None
    ) -> None:
        self._budget = budget
        self._device = torch.device(device)
        self._group = group
        self._ranks = ranks
        self._room = 0
        """Tokens that a step of all ranks has room for."""
        self._last: StepInfo | None = None
        self.restart()

    def restart(self) -> None:
        """Forget all steps, and start the clock."""
        # Sums of many steps need float64, which Metal does not have.
        exact = torch.float32 if self._device.type == "mps" else torch.float64
        self._own = torch.zeros(2, dtype=exact, device=self._device)
        self._own_padded = 0
        self._loss_sum = self._padded = 0.0
        self.gathered = True
        """Whether :meth:`gather` was called after the last step."""
        self.steps = self.samples = self.supervised = self._tokens = 0
        self._began = time.perf_counter()

    def add(self, step: StepInfo, loss: torch.Tensor | float) -> None:
        """Enter a step and its own loss, the mean over this rank's supervised tokens, unscaled."""
        self._last = step
        if not step.global_samples:  # fills up an accumulation window: no rank has a sample in it
            return
        # The loss of an idle step is that of a borrowed sample. It may be anything, even NaN, so it is not multiplied.
        if step.supervised_tokens:
            value = loss.detach().to(self._own) if torch.is_tensor(loss) else loss
            self._own[0] += value * step.supervised_tokens
        self._own_padded += step.padded_tokens
        self.gathered = False
        self.steps += 1
        self.samples += step.global_samples
        self._tokens += step.global_tokens
        self.supervised += step.global_supervised_tokens

    def add_evaluated(self, step: StepInfo, loss: torch.Tensor | float) -> None:
        """Enter a step of an evaluation, which has no use for the loss scale."""
        # Reading it tells the loader so: else a loop on several ranks is warned that it forgot to scale its loss.
        self.add(step, loss if step.loss_scale else 0.0)

    def gather(self) -> None:
        """Sum over ranks. All of them must call it at the same step."""
        processes = dist.get_world_size(self._group) if dist.is_available() and dist.is_initialized() else 1
        self._own[1] = self._own_padded
        if processes > 1:
            dist.all_reduce(self._own, group=self._group)
        loss, padded = self._own.tolist()
        peers = processes // (self._ranks or processes)  # those of one tensor-parallel group repeat each other
        self._room = self._budget * (processes // peers)
        self._loss_sum += loss / peers
        self._padded += padded / peers
        self._own.zero_()
        self._own_padded = 0
        self.gathered = True

    def read(self) -> dict[str, float]:
        """The figures since the last call. All ranks must call it at the same step."""
        self.gather()
        figures = self.figures()
        self.restart()
        return figures

    def figures(self) -> dict[str, float]:
        """The figures of what was gathered, without starting again."""
        seconds = max(self.seconds, 1e-9)
        return {
            "loss": self.loss,
            "padding": padding_ratio(self._tokens, round(self._padded)),
            "utilisation": utilisation(self._tokens, self.steps * self._room),
            "tokens_per_second": self._tokens / seconds,
            "samples_per_second": self.samples / seconds,
            "samples_seen": float(self._last.samples_seen) if self._last is not None else 0.0,
            "epoch": float(self._last.epoch) if self._last is not None else 0.0,
        }

    @property
    def loss(self) -> float:
        """The mean over all supervised tokens of all ranks that was gathered."""
        return self._loss_sum / self.supervised if self.supervised else 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the meter was made, restarted or last read."""
        return time.perf_counter() - self._began

    def leave_out(self, seconds: float) -> None:
        """Take out time that was spent on something else, such as an evaluation."""
        self._began += seconds

    def include(self, other: "Meter") -> None:
        """Add what another meter has gathered."""
        self._loss_sum += other._loss_sum
        self._padded += other._padded
        self.steps += other.steps
        self.samples += other.samples
        self._tokens += other._tokens
        self.supervised += other.supervised
