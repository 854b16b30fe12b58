"""Train a tiny Qwen3 on the demo chats with Lightning: alone, or on ranks under torchrun."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import text_chat
import torch
from lightning.pytorch import LightningModule, Trainer, callbacks

import odb_stream as odb
from odb_stream.adapters.lightning import ExactLoss, LoaderDataModule
from odb_stream.tiny_model import tiny_qwen3


class Chat(LightningModule):
    """A model and its optimizer; a step returns the model's own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.losses = tiny_qwen3(4096, seed=0), []

    def training_step(self, batch: dict[str, Any]) -> torch.Tensor:
        return self.model(**{"use_cache": False, **batch}).loss

    def on_train_batch_end(self, *_: Any) -> None:
        if self.trainer.datamodule.training.step.accum_last:
            self.losses.append(self.trainer.callback_metrics["train/loss"].item())
            self.print(f"step {self.global_step} loss {self.losses[-1]:.4f}", flush=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=5e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50, help="updates of the optimizer")
    parser.add_argument("--report", type=Path, help="write losses and the number of samples to this JSON file")
    parser.add_argument("--layout", choices=["padded", "packed"], default="padded")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--output", type=Path, help="folder of checkpoints: resume from the last one, if any")
    given = parser.parse_args()
    settings = {"budget": odb.Budget(tokens=4096), "layout": given.layout, "grad_accum": given.accumulate}
    data = LoaderDataModule(lambda: odb.Loader(text_chat.build(), **settings))
    saved = sorted(given.output.glob("*.ckpt")) if given.output else []
    save = callbacks.ModelCheckpoint(given.output, "{step:06d}", every_n_train_steps=5, save_top_k=-1)
    trainer = Trainer(
        max_steps=given.steps, max_epochs=-1, accumulate_grad_batches=given.accumulate, log_every_n_steps=1,
        callbacks=[exact := ExactLoss(), save][: 1 + bool(given.output)], enable_checkpointing=bool(given.output),
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")), logger=False, enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(chat := Chat(), datamodule=data, ckpt_path=saved[-1] if saved else None)
    if given.report and trainer.is_global_zero:
        given.report.write_text(json.dumps({"loss": chat.losses, "emitted": exact.samples}))


if __name__ == "__main__":
    main()
