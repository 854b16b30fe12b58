"""One rank of the training benchmark: an epoch of each workload with one way of making batches, timed and evaluated."""

import math
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from workloads import VOCABULARY, AsTensors, Rows, pad

import odb_stream as odb


class Step(NamedTuple):
    """A batch, the factor of its loss, and the samples and tokens of all ranks in the step."""

    batch: dict[str, Any]
    scale: float
    samples: int
    tokens: int


def model_of(shape: dict[str, int], seed: int) -> torch.nn.Module:
    """A randomly initialised Qwen3."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=shape.get("vocabulary", VOCABULARY), hidden_size=shape["width"], intermediate_size=shape["inner"],
        num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"], num_key_value_heads=shape["heads"],
        head_dim=shape["width"] // shape["heads"], use_cache=False, tie_word_embeddings=True,
        pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model: torch.nn.Module = Qwen3ForCausalLM(config)
    return model.train()


def over_ranks(*values: int) -> list[int]:
    """Sums over all ranks."""
    told = torch.tensor(values)
    dist.all_reduce(told)
    sums: list[int] = told.tolist()
    return sums


def fixed(job: dict[str, Any]) -> Iterator[Step]:
    """torch's DataLoader with batches of ``job["fixed"]`` samples; some samples come twice to fill the last batches."""
    rows: Any = Rows(job["lengths"])
    sampler: Any = DistributedSampler(rows, seed=job["seed"])
    loader: Any = DataLoader(rows, batch_size=job["fixed"], sampler=sampler, collate_fn=pad, num_workers=job["workers"])
    for batch in loader:
        samples, tokens = over_ranks(len(batch["input_ids"]), int(batch["attention_mask"].sum()))
        yield Step(batch, 1.0, samples, tokens)


def published(job: dict[str, Any]) -> Iterator[Step]:
    """The published package (``online-dynamic-batching``) as its pages show it: exact loss scaling, join mode.

    Its ranks may end at different steps, and a DDP loop would then wait forever. So an epoch ends for all ranks when it
    ends for one, and what the others still had does not count as emitted.
    """
    import odb

    rows: Any = AsTensors(Rows(job["lengths"]))
    loader = odb.ODBDataLoader(
        rows, token_budget=job["budget"], sampler=DistributedSampler(rows, seed=job["seed"]), batch_size=1,
        num_workers=job["workers"], prefetch_factor=job["published_window"] // job["workers"], collate_fn=pad,
        loss_scaling="exact", join=True,
    )  # fmt: skip
    batches = iter(loader)
    while True:
        batch = next(batches, None)
        if over_ranks(int(batch is not None))[0] < dist.get_world_size():
            return
        info = odb.pop_step_info(batch, loss_scaling="exact")
        samples, tokens = over_ranks(len(batch["input_ids"]), int(batch["attention_mask"].sum()))
        yield Step(batch, float(info.loss_scale), samples, tokens)


def ours(job: dict[str, Any]) -> Iterator[Step | None]:
    """This package at its default settings, in the layout named by the kind; None where the epoch begins."""
    pipeline = odb.Pipeline(odb.FromDataset(Rows(job["lengths"])))  # type: ignore[arg-type]
    budget = odb.Budget(tokens=job["budget"])
    with odb.Loader(pipeline, budget=budget, layout=job["kind"], workers=job["workers"], seed=job["seed"]) as loader:
        next(iter(loader))  # starts the workers, which does not count; this batch is not trained on
        yield None
        for batch in loader:
            step = odb.pop_step(batch)
            yield Step({"use_cache": False, **batch}, step.loss_scale, step.global_samples, step.global_tokens)


KINDS = {"fixed": fixed, "published": published, "padded": ours, "packed": ours}


def held_out_loss(model: torch.nn.Module, rows: Sequence[dict[str, Any]] | Rows, at_once: int = 8) -> float:
    """Mean loss a token on rows that no run trains on. The model has no dropout, so its mode does not matter."""
    total = tokens = 0.0
    with torch.no_grad():
        for start in range(0, len(rows), at_once):
            batch = pad([rows[place] for place in range(start, min(start + at_once, len(rows)))])
            count = int((batch["labels"][:, 1:] != -100).sum())
            total += float(model(**batch).loss) * count
            tokens += count
    return total / tokens


def epoch(job: dict[str, Any]) -> dict[str, Any]:
    """Train one epoch; figures of the step, the samples, the seconds, and the losses on held-out rows.

    Rule for the rate: ``job["rate"]`` times the square root of the step's tokens over those of a step of fixed batches,
    warmed up over a twentieth of the samples, then falling linearly to a tenth.
    """
    inner = model_of(job["shape"], job["seed"])
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job["rate"])
    every, seen, tokens, steps, at_equal_steps, paused = len(job["lengths"]), 0, 0, 0, None, 0.0
    held_out = Rows(job["held_out"], first=10**9)
    dist.barrier()
    started = time.perf_counter()
    for step in KINDS[job["kind"]](job):
        if step is None:
            dist.barrier()
            started = time.perf_counter()
            continue
        warm = min(1.0, (seen + step.samples) / (0.05 * every))
        factor = math.sqrt(step.tokens / job["reference_tokens"]) * warm * (1 - 0.9 * min(1.0, seen / every))
        optimizer.param_groups[0]["lr"] = job["rate"] * factor
        (model(**step.batch).loss * step.scale).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seen, tokens, steps = seen + step.samples, tokens + step.tokens, steps + 1
        if steps == job["equal_steps"]:
            before = time.perf_counter()
            at_equal_steps = held_out_loss(inner, held_out)
            dist.barrier()
            paused += time.perf_counter() - before
    dist.barrier()
    seconds = time.perf_counter() - started - paused
    return {
        "steps": steps, "emitted": seen, "tokens": tokens, "seconds": seconds,
        "loss": held_out_loss(inner, held_out), "loss_at_equal_steps": at_equal_steps,
    }  # fmt: skip


def live(rank: int, ranks: int, meet: str, jobs: list[dict[str, Any]], results: Any) -> None:
    """One rank: an epoch for each job."""
    os.setsid()  # a session of its own, so that whatever a loader leaves behind can be killed with the rank
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=ranks)
    for job in jobs:
        results.put((rank, job["name"], epoch(job)))
    dist.barrier()
    dist.destroy_process_group()
