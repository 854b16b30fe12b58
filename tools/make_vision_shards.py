"""Write the vision demo shards, their indexes and their processor: ``python tools/make_vision_shards.py [OUTDIR]``.

Everything is drawn from fixed seeds: with the same version of Pillow two runs write the same bytes.
"""

import argparse
import json
from pathlib import Path

from demo_vision import processor, talks

from odb_stream.shards.index import build_index, write_index
from odb_stream.shards.writer import WrittenShard, write_shards

VISION = Path(__file__).resolve().parents[1] / "shards" / "vision"
SAMPLES = 400
SHARDS = 4


def make(outdir: Path) -> tuple[WrittenShard, ...]:
    """Write ``chat-000000.tar`` and so on with their indexes, and ``processor/``, into a folder; replaces old ones."""
    drawn = list(talks(SAMPLES))
    samples = ((key, {"json": json.dumps(talk.chat).encode(), **talk.files}) for key, talk in drawn)
    written = write_shards(samples, str(outdir), samples_per_shard=SAMPLES // SHARDS, prefix="chat", overwrite=True)
    for shard in written:
        write_index(shard.address, build_index(shard.address))
    processor.write((talk.chat for _, talk in drawn), outdir / "processor")
    return written


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Write the vision demo shards, their indexes and their processor.")
    parser.add_argument("outdir", nargs="?", type=Path, default=VISION, help="default: shards/vision")
    for shard in make(parser.parse_args().outdir):
        print(f"{shard.address}: {shard.samples} samples")


if __name__ == "__main__":
    main()
