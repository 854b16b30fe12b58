"""The quarantine file of a rank: one JSON line for each damaged sample, so that it can be found and repaired."""

import json
from typing import Any

from odb_stream import storage
from odb_stream.sample import Drop, Record
from odb_stream.storage.options import DEFAULT, Storage


class Quarantine:
    """The file ``FOLDER/rank-00003.jsonl``.

    Each line has shard, key, reference (source, shard number, sample, byte offset), epoch, reason and detail. Earlier
    lines are kept, so a resumed run adds to the file; a sample is listed once for each epoch and reason. ``flush``
    writes what is new; it raises ShardError if the folder cannot be written.
    """

    def __init__(self, folder: str, rank: int, options: Storage = DEFAULT) -> None:
        self.address = f"{folder.rstrip('/')}/rank-{rank:05d}.jsonl"
        self._options = options
        self._lines: dict[tuple[Any, ...], str] | None = None
        self._new: dict[tuple[Any, ...], str] = {}

    def add(self, record: Record, drop: Drop) -> None:
        """List a damaged sample; the next :meth:`flush` writes it."""
        ref = record.ref
        line = {
            "shard": record.shard,
            "key": record.key,
            "ref": list(ref),
            "epoch": record.epoch,
            "reason": drop.reason,
            "detail": drop.detail,
        }
        self._new[_identity(line)] = json.dumps(line, ensure_ascii=False)

    def flush(self) -> None:
        """Replace the file if anything is new.

        It is written whole: a store cannot append, and a reader never sees half a line.
        """
        if not self._new:
            return
        if self._lines is None:
            # Not at the start: a run without damage makes no request.
            self._lines = self._read()
        self._lines |= self._new
        self._new = {}
        text = "".join(f"{line}\n" for line in self._lines.values())
        storage.write_atomic(self.address, text.encode(), self._options)

    def _read(self) -> dict[tuple[Any, ...], str]:
        if not storage.exists(self.address, self._options):
            return {}
        with storage.open_stream(self.address, options=self._options) as stream:
            lines = stream.read().decode().splitlines()
        return {_identity(json.loads(line)): line for line in lines}


def _identity(line: dict[str, Any]) -> tuple[Any, ...]:
    return (*line["ref"], line["epoch"], line["reason"])
