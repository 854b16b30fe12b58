"""Shared by the tests of the command line: the program as a process, chats, and recipes as text."""

import json
import subprocess
import sys
from pathlib import Path

from waiting import PATIENCE

CHATS = [
    {
        "messages": [
            {"role": "user", "content": f"what is {number} plus one? " + "please think about it " * (number % 7)},
            {"role": "assistant", "content": f"{number} plus one is {number + 1}. " + "so it is " * (number % 5)},
        ]
    }
    for number in range(60)
]

CHAT_RECIPE = """
import odb_stream as odb
from odb_stream import stages
from tokenizers import Tokenizer

TEMPLATE = {template!r}

def build(shards={shards!r}, max_length=512):
    tokenizer = Tokenizer.from_file({tokenizer!r})
    chat = stages.ChatTemplate(tokenizer, template=TEMPLATE)
    return odb.Pipeline(odb.Shards(shards), chat, stages.Tokenize(tokenizer, max_length=max_length))
"""

NUMBERS_RECIPE = """
import odb_stream as odb

class Numbers:
    '''Item i holds the token i + 1 between 2 and 12 times.'''

    def __len__(self):
        return 50

    def __getitem__(self, index):
        return {"input_ids": [index + 1] * (2 + index % 11)}

def every_tenth(sample):
    return odb.Drop("every_tenth") if sample.ref.index % 10 == 0 else sample

def build():
    return odb.Pipeline(odb.FromDataset(Numbers()), every_tenth)
"""

FAILS = "raise AssertionError('the recipe ran')\n"


def odb_stream(*arguments: object, **settings: object) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    command = [sys.executable, "-m", "odb_stream.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, **settings)


def write_jsonl(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
