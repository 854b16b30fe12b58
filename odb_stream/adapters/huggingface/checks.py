"""Settings of a Trainer that conflict with a loader: each is refused at the start, by name, with the way out."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from transformers import TrainingArguments

from odb_stream.errors import ConfigError
from odb_stream.loader import Loader


def check_loaders(train_loader: Any, eval_loader: Any, given: Mapping[str, Any]) -> None:
    """Raise a ConfigError unless these are Loaders and the arguments ``given`` hold no dataset next to them."""
    for name, loader in (("train_loader", train_loader), ("eval_loader", eval_loader)):
        if loader is not None and not isinstance(loader, Loader):
            raise ConfigError(f"{name} must be an odb_stream Loader, not {loader!r}: it feeds each rank by itself")
    if train_loader is None:
        raise ConfigError("train_loader is None: give an odb_stream Loader")
    if given.get("train_dataset") is not None:
        raise ConfigError(
            "train_dataset is given beside train_loader: leave it out, because the loader provides the data"
        )
    if given.get("eval_dataset") is not None and eval_loader is not None:
        raise ConfigError("eval_dataset is given beside eval_loader: leave one of them out")
    if eval_loader is not None and eval_loader.settings.closure != "join":
        raise ConfigError(
            "eval_loader has closure='quota', which repeats or leaves out samples: evaluate with closure='join'"
        )
    if given.get("compute_metrics") is not None and eval_loader is not None and eval_loader.world.size > 1:
        raise ConfigError(
            "compute_metrics is set, but eval_loader gives ranks batches of different shapes, and idle steps "
            "have predictions too: evaluate only the loss with it, or use an eval_dataset, or one rank, for metrics"
        )


def check_arguments(args: TrainingArguments, loader: Loader) -> None:
    """Raise a ConfigError that names the first argument that would batch, order, shard or count the data again."""
    for problem in _problems(args, loader):
        raise ConfigError(problem)


def check_ranks(loader: Loader, name: str, processes: int, peers: int) -> None:
    """Raise a ConfigError unless a loader was built for the trainer's data-parallel ranks.

    ``processes`` counts all of them, ``peers`` those that share a batch (tensor and context parallelism).
    """
    if loader.world.size * peers != processes:
        raise ConfigError(
            f"{name} was built for {loader.world.size} ranks, but the trainer has {processes // peers} data-parallel "
            f"ones ({processes} processes): create the TrainingArguments first, they start torch.distributed, then "
            "the Loader; with tensor or context parallelism give it world=odb.World.from_mesh(...)"
        )


def _problems(args: TrainingArguments, loader: Loader) -> Iterator[str]:
    settings = loader.settings
    defaults = {field.name: field.default for field in fields(args)}
    if args.per_device_train_batch_size != defaults["per_device_train_batch_size"]:
        yield (
            f"per_device_train_batch_size is {args.per_device_train_batch_size}, but the loader decides what a batch "
            "contains: leave it out and set the loader's Budget (tokens, or samples)"
        )
    if args.auto_find_batch_size:
        yield "auto_find_batch_size is set, but the loader decides what a batch contains: lower its Budget instead"
    if args.gradient_accumulation_steps != settings.grad_accum:
        yield (
            f"gradient_accumulation_steps is {args.gradient_accumulation_steps}, but the loader's grad_accum is "
            f"{settings.grad_accum}, over which loss_scale is counted: set both to the same number"
        )
    for name in ("dispatch_batches", "split_batches"):
        if getattr(args.accelerator_config, name, None):
            yield (
                f"{name} is set in accelerator_config: rank 0 would divide batches among the ranks, but the "
                "loader feeds each rank by itself: leave it out"
            )
    if args.dataloader_num_workers > 0:
        yield (
            f"dataloader_num_workers is {args.dataloader_num_workers}, but there is no DataLoader: leave it out and "
            "set Loader(workers=...)"
        )
    if args.dataloader_drop_last:
        yield "dataloader_drop_last is set, but the loader gives every sample once: leave it out"
    if args.train_sampling_strategy != defaults["train_sampling_strategy"]:
        yield (
            f"train_sampling_strategy is {args.train_sampling_strategy!r}, but the loader decides order and grouping: "
            "leave it out and set the loader's window, or the source's shuffle"
        )
    if args.include_num_input_tokens_seen not in ("no", False):
        yield (
            "include_num_input_tokens_seen would count the tokens of idle steps: leave it out, samples_seen and "
            "tokens_per_second are logged"
        )
    if args.n_gpu > 1:
        yield (
            f"{args.n_gpu} GPUs in one process would cut up the loader's batches: start one process for each with "
            "torchrun"
        )
    for name in ("logging_steps", "eval_steps", "save_steps"):
        value = getattr(args, name)
        if value is not None and 0 < value < 1 and args.max_steps <= 0:
            yield (
                f"{name} is {value:g}, a share of all steps, but their number is unknown before the data are read: "
                "give a number of steps, or set max_steps"
            )
    if settings.closure == "join" and loader.samples is None and args.num_train_epochs % 1:
        yield (
            f"num_train_epochs is {args.num_train_epochs:g}, but the number of samples in an epoch is unknown: give a "
            "whole number, or write an index beside every shard (`odb-stream index`)"
        )
