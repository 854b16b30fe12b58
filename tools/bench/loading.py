"""Loader throughput beside other loaders: the same samples, the same two workers, rounds in turn.

    python tools/bench loading [--samples 12000] [--rounds 5]

``integers``: samples of 300 to 700 numbers that cost nothing to make, which leaves the loader's own cost. ``chats``:
chats in tar shards, through chat template and tokenizer; every loader calls the same code for them. Peers: torch's
DataLoader with batches of 16 (for chats, over their bytes in memory), webdataset's own loader with batches of 16 (chats
only), and the published package with the same budget as ours. A round is an epoch; the start of persistent workers does
not count.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from results import median_ratio, table
from workloads import AsTensors, Integers, pad

import odb_stream as odb
from odb_stream import stages
from odb_stream.prepare.records import prepare_for
from odb_stream.sample import Record, SampleRef
from odb_stream.shards.index import write_index
from odb_stream.shards.reader import build_index
from odb_stream.shards.writer import write_shards

TOKENIZER = Path(__file__).resolve().parents[2] / "shards" / "demo" / "tokenizer"
BUDGET = 16_384
BATCH = 16
WORDS = ["the", "batch", "holds", "what", "fits", "and", "a", "step", "ends", "when", "every", "rank", "has", "made"]
Batches = Iterable[dict[str, Any]]
Name = TypeVar("Name")


def pipeline_of(shards: str) -> odb.Pipeline:
    """Chats of these shards, tokenized."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    return odb.Pipeline(odb.Shards(shards), stages.ChatTemplate(tokenizer), stages.Tokenize(tokenizer, max_length=4096))


class Chats:
    """The chats of a folder as a map-style dataset: what a user of a plain DataLoader writes, over raw bytes."""

    def __init__(self, shards: str, contents: list[bytes]) -> None:
        self.contents = contents
        self.prepare = prepare_for(pipeline_of(shards), 0)

    def __len__(self) -> int:
        return len(self.contents)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.of_sample({"__key__": f"{index:06d}", "json": self.contents[index]})

    def of_sample(self, sample: dict[str, Any]) -> dict[str, Any]:
        """One chat, from its json to token ids and labels; webdataset calls it with each sample of the tar."""
        made = self.prepare.record(Record(SampleRef(0, 0, 0, 0), sample["__key__"], "chats", {"json": sample["json"]}))
        assert not isinstance(made, odb.Drop)
        return {"input_ids": made.input_ids, "labels": made.labels}


def write_chats(folder: Path, samples: int, *, words: tuple[int, int] = (10, 299), shards: int = 8) -> list[bytes]:
    """Indexed shards of seeded chats, with this least and most number of words a turn; returns what they hold."""
    draw = np.random.Generator(np.random.PCG64(7))
    contents = []
    for _ in range(samples):
        texts = [" ".join(draw.choice(WORDS, int(size))) for size in draw.integers(words[0], words[1] + 1, 2)]
        turns = [{"role": role, "content": text} for role, text in zip(("user", "assistant"), texts, strict=True)]
        contents.append(json.dumps({"messages": turns}).encode())
    keyed = [(f"{number:06d}", {"json": content}) for number, content in enumerate(contents)]
    for shard in write_shards(keyed, str(folder), samples_per_shard=-(-samples // shards)):
        write_index(shard.address, build_index(shard.address))
    return contents


def plain(dataset: Any, workers: int) -> Batches:
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset, batch_size=BATCH, num_workers=workers, shuffle=True, collate_fn=pad, persistent_workers=True
    )


@dataclass
class Published:
    """The published package: a window of 256 samples; each epoch has a loader of its own, whose workers start again."""

    dataset: Any
    workers: int

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import odb as published_package

        loader: Any = published_package.ODBDataLoader(
            AsTensors(self.dataset), token_budget=BUDGET, batch_size=1, shuffle=True, num_workers=self.workers,
            prefetch_factor=256 // self.workers, collate_fn=pad, loss_scaling="exact", join=True,
        )  # fmt: skip
        return iter(loader)


def from_tar(shards: list[str], workers: int) -> Batches:
    import webdataset

    dataset = webdataset.WebDataset(shards, shardshuffle=8, seed=1).shuffle(1000).map(Chats(shards[0], []).of_sample)
    loader: Batches = webdataset.WebLoader(
        dataset.batched(BATCH, collation_fn=pad), batch_size=None, num_workers=workers, persistent_workers=True
    )
    return loader


def rates(loaders: Mapping[Name, Batches], expected: int, rounds: int) -> dict[Name, list[float]]:
    """Emitted samples per second of each loader and round; the first round is a warm-up and does not count."""
    found: dict[Name, list[float]] = {name: [] for name in loaders}
    for number in range(rounds + 1):
        for name, batches in loaders.items():
            started = time.perf_counter()
            ours = isinstance(batches, odb.Loader)
            rows = sum(odb.pop_step(batch).samples if ours else len(batch["input_ids"]) for batch in batches)
            rate = rows / (time.perf_counter() - started)
            if number:
                found[name].append(rate)
            if rows != expected:
                print(f"{name}: {rows} samples came out of {expected}", flush=True)
    return found


def case(name: str, source: odb.Pipeline, peers: dict[str, Batches], samples: int, options: Any) -> dict[str, Any]:
    """All loaders over one kind of samples."""
    with odb.Loader(source, budget=odb.Budget(tokens=BUDGET), workers=options.workers) as loader:
        found = rates({"odb_stream": loader, **peers}, samples, options.rounds)
    ours = found["odb_stream"]
    for peer, theirs in found.items():
        print(f"{name}, {peer}: {statistics.median(theirs):,.0f} samples a second", flush=True)
    return {
        "samples_per_second": {peer: statistics.median(theirs) for peer, theirs in found.items()},
        "ratios": {peer: median_ratio(ours, theirs) for peer, theirs in found.items()},
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    workers, samples = options.workers, options.samples
    has_published = find_spec("odb") is not None

    def peers_over(dataset: Any) -> dict[str, Batches]:
        found = {"DataLoader": plain(dataset, workers)}
        return {**found, "published": Published(dataset, workers)} if has_published else found

    integers = Integers.of_size(samples)
    cases = {
        "integers": case("integers", odb.Pipeline(odb.FromDataset(integers)), peers_over(integers), samples, options)
    }
    with tempfile.TemporaryDirectory() as name:
        contents = write_chats(Path(name), samples)
        shards = f"{name}/*.tar"
        peers = {
            **peers_over(Chats(shards, contents)),
            "webdataset": from_tar(sorted(map(str, Path(name).glob("*.tar"))), workers),
        }
        cases["chats"] = case("chats", pipeline_of(shards), peers, samples, options)
    skipped = [] if has_published else ['the published package is not installed: pip install "odb-stream[bench]"']
    return {"samples": samples, "workers": workers, "rounds": options.rounds, "cases": cases, "skipped": skipped}


def page(figures: dict[str, Any]) -> str:
    """Rates and ratios, one line per case."""
    names = ["odb_stream", "DataLoader", "webdataset", "published"]
    rows = []
    for name, found in figures["cases"].items():
        rate, ratio = found["samples_per_second"], found["ratios"]
        rows.append(
            [name, *(round(rate[peer]) if peer in rate else None for peer in names), *map(ratio.get, names[1:])]
        )
    header = ["samples", *names, *(f"odb_stream / {peer}" for peer in names[1:])]
    intro = (
        f"Emitted samples a second, {figures['samples']:,} samples, {figures['workers']} workers, medians of "
        f"{figures['rounds']} rounds. `odb_stream` and the published package pad by a budget of {BUDGET:,} tokens, the "
        f"others batch {BATCH} samples."
    )
    return "\n\n".join([intro, table(header, rows), *(f"Left out: {reason}." for reason in figures["skipped"])])


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, default=12_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
