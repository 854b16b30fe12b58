"""Train a tiny Qwen3 on the demo chats with transformers' Trainer: in one process, or on ranks under torchrun."""

import argparse
import json
from pathlib import Path

import text_chat
from transformers import TrainingArguments

import odb_stream as odb
from odb_stream.adapters.huggingface import StreamTrainer
from odb_stream.tiny_model import tiny_qwen3


def main() -> None:
    """Train, evaluate, and write the report."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=-1, help="most updates; without it, --epochs decides")
    options.add_argument("--epochs", type=float, default=1.0)
    options.add_argument("--layout", choices=["padded", "packed"], default="padded")
    options.add_argument("--budget", type=int, default=2_048, help="tokens of one rank's batch")
    options.add_argument("--output", help="folder of checkpoints: resume from the last one, if any")
    options.add_argument("--save-steps", type=int, default=50)
    options.add_argument("--report", help="write loss (one number per step), emitted and eval_loss to this JSON file")
    given = options.parse_args()
    args = TrainingArguments(  # before the loaders, because it starts torch.distributed
        output_dir=given.output or "output",
        save_strategy="steps" if given.output else "no",
        save_steps=given.save_steps,
        max_steps=given.steps,
        num_train_epochs=given.epochs,
        learning_rate=5e-3,
        lr_scheduler_type="cosine",
        warmup_steps=0.05,  # as a share of all samples
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    pipeline, budget = text_chat.build(max_length=given.budget), odb.Budget(given.budget)
    with (
        odb.Loader(pipeline, budget=budget, layout=given.layout, window=64) as loader,
        odb.Loader(pipeline, budget=budget) as held_out,  # the demo has only one set of chats
    ):
        trainer = StreamTrainer(tiny_qwen3(2_048, seed=0), args, train_loader=loader, eval_loader=held_out)
        trainer.train(resume_from_checkpoint=bool(given.output) and any(Path(given.output).glob("checkpoint-*")))
        metrics = trainer.evaluate()
        if given.report and trainer.is_world_process_zero():
            steps = [entry for entry in trainer.state.log_history if "loss" in entry]
            report = {"loss": [entry["loss"] for entry in steps], "emitted": steps[-1]["samples_seen"], **metrics}
            Path(given.report).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
