"""Write the demo shards, their indexes and their tokenizer: ``python tools/make_demo_shards.py [OUTDIR]``.

Everything is drawn from fixed seeds: two runs write the same bytes.
"""

import argparse
import json
from pathlib import Path

from demo_text import chats, tokenizer

from odb_stream.shards.index import build_index, write_index
from odb_stream.shards.writer import WrittenShard, write_shards

DEMO = Path(__file__).resolve().parents[1] / "shards" / "demo"
SAMPLES = 760
SHARDS = 4


def make(outdir: Path) -> tuple[WrittenShard, ...]:
    """Write ``chat-000000.tar`` and so on with their indexes, and ``tokenizer/``, into a folder; replaces old ones."""
    drawn = list(chats(SAMPLES))
    samples = ((key, {"json": json.dumps(chat, ensure_ascii=False).encode()}) for key, chat in drawn)
    written = write_shards(samples, str(outdir), samples_per_shard=SAMPLES // SHARDS, prefix="chat", overwrite=True)
    for shard in written:
        write_index(shard.address, build_index(shard.address))
    tokenizer.save(tokenizer.train(chat for _, chat in drawn), outdir / "tokenizer")
    return written


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Write the demo shards, their indexes and their tokenizer.")
    parser.add_argument("outdir", nargs="?", type=Path, default=DEMO, help="default: shards/demo")
    for shard in make(parser.parse_args().outdir):
        print(f"{shard.address}: {shard.samples} samples")


if __name__ == "__main__":
    main()
