"""What the vision pipeline costs: throughput beside the bare processor, memory with large images, balance of steps.

    python tools/bench/vision.py [throughput] [memory] [balance]

Prints one JSON object; without names it runs all three parts. The pictures are synthetic: noise of all scales over a
few shapes, as JPEG of about a fifth of a byte per pixel, like photographs.

- ``throughput``: 192 chats with 1 to 3 pictures of 0.2 to 1 megapixels, as Qwen3-VL measures them (no shrinking). Ours
  is a whole epoch of a Loader with 2 workers, cold, up to packed batches of float32 pixels in the main process. The
  bare processor runs in a pool of 2 processes that hold the same chats: each opens the JPEG bytes with Pillow, renders
  the chat with ``apply_chat_template``, calls ``processor(text, images, return_tensors="np")`` and returns two numbers.
  It makes no labels and no batches, and sends nothing. Both are warmed up first, and rounds alternate; the ratio is
  that of the medians.
- ``memory``: peak resident memory (VmHWM) of the main process of a Loader with 2 workers, window 1,024 and
  ``max_bytes`` at its default, in a process of its own: 4,000 samples of one picture of 1 megapixel, 4 of them in each
  step; no two share bytes. The training loop pauses once, until everything ahead of it is full. ``early`` is the same
  with a stage that needs the pixels before the size is known, stopped when its window is full. ``before`` is the memory
  of the process before it builds its loader.
- ``balance``: the critical ratio of the vision demo over 4 ranks, padded and packed, beside fixed batches of the same
  mean size.
"""

import argparse
import io
import json
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

import odb_stream as odb
from odb_stream import stages
from odb_stream.prepare.records import prepare_for

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "pipelines"))

import vision_chat

LIMITS = {"shortest_edge": 65_536, "longest_edge": 16_777_216}
"""Qwen3-VL's own."""
QUESTIONS = ("What is in the picture?", "Compare the colours.", "Which shapes lie over the noise, and where?")
ANSWER = "A few shapes of different colours over a cloudy ground. " * 4


def photograph(width: int, height: int, seed: int) -> bytes:
    rng = np.random.Generator(np.random.PCG64(seed))
    layers = np.zeros((height, width, 3), dtype=np.float32)
    for cells, strength in ((4, 90.0), (16, 40.0), (64, 22.0), (256, 14.0)):
        noise = rng.normal(0, strength, (cells * height // width + 1, cells, 3)).clip(-127, 127)
        small = Image.fromarray((noise + 128).astype(np.uint8))
        layers += np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32) - 128
    layers += rng.normal(0, 5.0, layers.shape).astype(np.float32)
    picture = Image.fromarray((layers + 128).clip(0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(picture)
    for _ in range(5):
        x, y, r = rng.integers(0, width), rng.integers(0, height), rng.integers(20, 120)
        pen.ellipse((x - r, y - r, x + r, y + r), fill=tuple(rng.integers(0, 256, 3).tolist()))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=82)
    return file.getvalue()


@dataclass(frozen=True)
class Photographs:
    """Chats with ``images``, JPEG files as bytes; item i has the files i, i + 1 and so on of a stock."""

    size: int
    stock: tuple[bytes, ...]
    most: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        count = 1 + index % self.most
        # A copy, because samples from shards do not share bytes either.
        images = [bytes(bytearray(self.stock[(index + n) % len(self.stock)])) for n in range(count)]
        asked = [{"type": "image"} for _ in images] + [{"type": "text", "text": QUESTIONS[index % 3]}]
        answer = [{"type": "text", "text": ANSWER}]
        return {
            "messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}],
            "images": images,
        }


def processor() -> Any:
    """The demo's tokenizer and template with Qwen3-VL's own image limits."""
    loaded = vision_chat.load_processor(str(vision_chat.VISION / "processor"))
    loaded.image_processor.size = type(loaded.image_processor.size)(**LIMITS)
    return loaded


def pipeline(dataset: Photographs, *early: Any) -> odb.Pipeline:
    """The stages without augmentation."""
    loaded = processor()
    return odb.Pipeline(
        odb.FromDataset(dataset),
        stages.MeasureImages(),
        *early,
        stages.ChatTemplate(loaded),
        stages.Tokenize(loaded),
        stages.ExpandVisualTokens(loaded),
    )


# ---- Throughput ----

bare: tuple[Any, Photographs]


def start_bare(dataset: Photographs) -> None:
    global bare
    bare = processor(), dataset


def run_bare(index: int) -> tuple[int, int]:
    """Tokens and patches of one chat."""
    loaded, dataset = bare
    item = dataset[index]
    pictures = [Image.open(io.BytesIO(data)) for data in item["images"]]
    text = loaded.apply_chat_template(item["messages"], tokenize=False)
    out = loaded(text=[text], images=pictures, return_tensors="np")
    return out["input_ids"].size, len(out["pixel_values"])


def throughput(samples: int, rounds: int) -> dict[str, Any]:
    rng = np.random.Generator(np.random.PCG64(3))
    sides = [(int(rng.integers(500, 1150)), int(rng.integers(400, 900))) for _ in range(48)]
    dataset = Photographs(samples, tuple(photograph(*side, seed) for seed, side in enumerate(sides)), most=3)
    ours, theirs = [], []
    budget = odb.Budget(tokens=8_192)
    with (
        odb.Loader(pipeline(dataset), budget=budget, layout="packed", workers=2) as loader,
        multiprocessing.get_context("spawn").Pool(2, start_bare, (dataset,)) as pool,
    ):
        for number in range(rounds + 1):
            started = time.perf_counter()
            patches = tokens = 0
            for batch in loader:
                tokens += odb.pop_step(batch).tokens
                patches += len(batch["pixel_values"])
            middle = time.perf_counter()
            results = pool.map(run_bare, range(samples), chunksize=4)
            ended = time.perf_counter()
            assert (tokens, patches) == tuple(map(sum, zip(*results, strict=True))), "the two did different work"
            if number:
                ours.append(samples / (middle - started))
                theirs.append(samples / (ended - middle))
    mine, bares = statistics.median(ours), statistics.median(theirs)
    return {
        "samples": samples,
        "megapixels_a_sample": round(patches * 256 / samples / 1e6, 2),
        "odb_stream_samples_per_second": round(mine, 2),
        "bare_processor_samples_per_second": round(bares, 2),
        "ratio": round(mine / bares, 2),
        "ratio_by_round": [round(a / b, 2) for a, b in zip(ours, theirs, strict=True)],
    }


# ---- Memory ----


class Untouched(stages.PixelTransform):
    """Changes nothing, but must see the pixels."""

    def transform(self, image: Image.Image, draws: np.random.Generator) -> Image.Image:  # noqa: ARG002
        return image


def resident(field: str) -> float:
    """Memory of this process in megabytes, by its name in /proc."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(field)]
    return round(int(line.split()[1]) / 1000, 1)


def peak(samples: int, window: int, early: bool, steps: int | None) -> dict[str, Any]:
    """Peak memory of this process over an epoch, or over as many steps."""
    stock = tuple(photograph(1_024, 1_000, seed) for seed in range(40))
    dataset = Photographs(samples, stock, most=1)
    before = resident("VmRSS")
    # Samples of about 1,000 tokens, so a packed step holds 4.
    loader = odb.Loader(
        pipeline(dataset, *([Untouched()] if early else [])),
        budget=odb.Budget(tokens=4_500),
        layout="packed",
        window=window,
        workers=2,
    )
    taken = emitted = 0
    with loader:
        for batch in loader:
            emitted += odb.pop_step(batch).samples
            taken += 1
            if taken == (steps or samples // 4) // 2:
                time.sleep(20)  # a slow step: everything that may be held ahead of the loop now is
            if taken == steps:
                break
    return {
        "samples": emitted,
        "steps": taken,
        "mean_file_kilobytes": round(sum(map(len, stock)) / len(stock) / 1000),
        "before": before,
        "peak": resident("VmHWM"),
    }


def memory(samples: int, window: int) -> dict[str, Any]:
    results = {}
    # The window starts at 256 places and doubles each round of at most 128 steps of 4 samples: 300 steps fill it.
    for name, early, steps in (("late", False, None), ("early", True, min(300, samples // 4))):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            results[name] = pool.submit(peak, samples, window, early, steps).result()
    return {
        "window": window,
        "megabytes": results,
        "late_over_early": round(results["late"]["peak"] / results["early"]["peak"], 2),
    }


# ---- Balance ----


def balance(ranks: int, tokens: int) -> dict[str, Any]:
    """Critical ratios of the demo, by layout."""
    from odb_stream.batching.cost import Footprint
    from odb_stream.batching.simulate.figures import deal, simulate

    demo = vision_chat.build()
    prepare = prepare_for(demo, seed=0)
    records = demo.source.reading(odb.World(), seed=0, epoch=0).records(odb.sample.START)
    lengths = deal([prepare.record(record).length for record in records], ranks)
    results: dict[str, Any] = {"ranks": ranks, "budget_tokens": tokens}
    for layout in ("padded", "packed"):
        footprint = Footprint(layout, odb.Budget(tokens))
        own = simulate(lengths, policy="anchored", footprint=footprint)
        size = max(1, round(own.emitted / own.steps / ranks))
        fixed = simulate(lengths, policy="fixed", footprint=footprint, batch_size=size)
        results[layout] = {
            "critical_ratio": round(own.critical_ratio, 3),
            "padding_ratio": round(own.padding_ratio, 3),
            "fixed_batch": size,
            "fixed_critical_ratio": round(fixed.critical_ratio, 3),
            "fixed_padding_ratio": round(fixed.padding_ratio, 3),
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="throughput, memory or balance; default: all")
    parser.add_argument("--samples", type=int, default=192, help="of the throughput")
    parser.add_argument("--rounds", type=int, default=3, help="of the throughput")
    parser.add_argument("--memory-samples", type=int, default=4_000)
    parser.add_argument("--window", type=int, default=1_024, help="of the memory")
    options = parser.parse_args()
    every = {
        "throughput": lambda: throughput(options.samples, options.rounds),
        "memory": lambda: memory(options.memory_samples, options.window),
        "balance": lambda: balance(ranks=4, tokens=2_048),
    }
    unknown = set(options.parts) - set(every)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}: there are {', '.join(every)}")
    print(json.dumps({name: every[name]() for name in options.parts or every}, indent=2))


if __name__ == "__main__":
    main()
