"""Train a tiny Qwen3 on the demo chats with accelerate: alone, or on ranks under torchrun or `accelerate launch`."""

import argparse
import json
from pathlib import Path

import text_chat
import torch
from accelerate import Accelerator

import odb_stream as odb
from odb_stream.adapters.accelerate import accumulate, prepare
from odb_stream.adapters.torch import Meter, to_device
from odb_stream.tiny_model import tiny_qwen3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50, help="updates of the optimizer")
    parser.add_argument("--report", type=Path, help="write losses and the number of samples to this JSON file")
    parser.add_argument("--layout", choices=["padded", "packed"], default="padded")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--output", type=Path, help="folder of checkpoints: resume from the last one, if any")
    given = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=given.accumulate, cpu=not torch.cuda.is_available())
    saved = sorted(given.output.glob("[0-9]*")) if given.output else []
    settings = {"budget": odb.Budget(tokens=4096), "layout": given.layout, "grad_accum": given.accumulate}
    with odb.Loader(text_chat.build(), **settings) as loader:
        model = tiny_qwen3(4096, seed=0)
        loader, model, optimizer = prepare(accelerator, loader, model, torch.optim.AdamW(model.parameters(), lr=5e-3))
        if saved:
            accelerator.load_state(str(saved[-1]))
        done, losses, meter = int(saved[-1].name) if saved else 0, [], Meter(budget=4096, device=accelerator.device)
        while done < given.steps:  # each `for` is an epoch
            for batch in loader:
                step = odb.pop_step(batch)
                with accumulate(accelerator, step, model) as backward:
                    loss = model(**{"use_cache": False, **to_device(batch, accelerator.device)}).loss
                    backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                meter.add(step, loss)
                if step.accum_last:
                    done += 1
                    losses.append(meter.read()["loss"])
                    accelerator.print(f"step {done} loss {losses[-1]:.4f}", flush=True)
                    if given.output and done % 5 == 0:
                        accelerator.save_state(str(given.output / "unfinished"))
                        accelerator.wait_for_everyone()
                        if accelerator.is_main_process:
                            (given.output / "unfinished").rename(given.output / f"{done:06d}")
                if done == given.steps:
                    break
    if given.report and accelerator.is_main_process:
        given.report.write_text(json.dumps({"loss": losses, "emitted": loader.report()["global"]["emitted"]}))
    accelerator.end_training()


if __name__ == "__main__":
    main()
