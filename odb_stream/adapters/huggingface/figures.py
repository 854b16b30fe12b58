"""What a training or evaluation run logs: the token mean of the loss over all ranks, padding, utilisation, speed."""

import time
from typing import Any

import torch

from odb_stream.adapters.huggingface.stream import is_filling
from odb_stream.loader import Loader
from odb_stream.sample import StepInfo


class Figures:
    """Sums over steps: those of this rank are added up over ranks by :meth:`gather`, the others are global already."""

    def __init__(self, loader: Loader, accelerator: Any) -> None:
        self._accelerator = accelerator
        self._ranks = loader.world.size
        self._budget = loader.settings.budget.tokens
        self._exact = torch.float32 if accelerator.device.type == "mps" else torch.float64
        self.restart()

    def restart(self) -> None:
        """Begin a new stretch."""
        self._own = torch.zeros(2, dtype=self._exact, device=self._accelerator.device)
        self.began = time.perf_counter()
        self.loss_sum = self.padded = 0.0
        self.gathered = True
        self.steps = self.samples = self.tokens = self.supervised = 0

    def enter(self, step: StepInfo, loss: torch.Tensor) -> None:
        """Enter a step and the mean loss over its own supervised tokens."""
        if is_filling(step):
            return
        if step.loss_scale:  # an idle step counts for nothing, whatever its loss
            self._own[0] += loss.detach().to(self._exact) * step.supervised_tokens
        self._own[1] += step.padded_tokens
        self.gathered = False
        self.steps += 1
        self.samples += step.global_samples
        self.tokens += step.global_tokens
        self.supervised += step.global_supervised_tokens

    def gather(self) -> None:
        """Add up over ranks; all of them call it at the same step."""
        summed = self._accelerator.reduce(self._own, reduction="sum")
        loss, padded = summed.tolist()
        peers = self._accelerator.num_processes // self._ranks  # those of one tensor-parallel group repeat each other
        self.loss_sum += loss / peers
        self.padded += padded / peers
        self._own = torch.zeros_like(self._own)
        self.gathered = True

    @property
    def seconds(self) -> float:
        """Since the stretch began."""
        return time.perf_counter() - self.began

    @property
    def loss(self) -> float:
        """The mean over all supervised tokens of all ranks."""
        return self.loss_sum / self.supervised if self.supervised else 0.0

    def read(self) -> dict[str, float]:
        """The figures of the stretch, by the names that are logged."""
        room = self.steps * self._ranks * self._budget
        return {
            "loss": self.loss,
            "padding": 1 - self.tokens / self.padded if self.padded else 0.0,
            "utilisation": self.tokens / room if room else 0.0,
            "tokens_per_second": self.tokens / max(self.seconds, 1e-9),
        }

    def add(self, other: "Figures") -> None:
        """Take over what another stretch gathered."""
        self.loss_sum += other.loss_sum
        self.padded += other.padded
        self.steps += other.steps
        self.samples += other.samples
        self.tokens += other.tokens
        self.supervised += other.supervised
