"""Samples out of a tar shard, strictly: by key, with byte offsets, and an error wherever data would be lost.

A sample is a run of neighbouring files that share a key: the path up to the first dot of the file name. The rest of the
name is the extension. ``a/b.0.jpg`` has the key ``a/b`` and the extension ``0.jpg``.
"""

from collections.abc import Generator
from contextlib import closing

from odb_stream import storage
from odb_stream.errors import ShardError
from odb_stream.sample import Drop
from odb_stream.shards.tar.byte_cursor import Tape
from odb_stream.shards.tar.faults import Fault, OnFault
from odb_stream.shards.tar.grouping import Grouping, Item, TarSample
from odb_stream.shards.tar.headers import BLOCK
from odb_stream.shards.tar.names import PICKLES, is_left_out, split_name
from odb_stream.shards.tar.walk import walk
from odb_stream.storage.options import DEFAULT, Storage

__all__ = ["BLOCK", "PICKLES", "TarSample", "is_left_out", "read_items", "read_sample", "read_samples", "split_name"]


def read_samples(
    address: str, *, offset: int = 0, index: int = 0, options: Storage = DEFAULT
) -> Generator[TarSample, None, None]:
    """Read a shard's samples in file order, from the one numbered ``index`` at byte ``offset`` to the end.

    Raises ShardError, with address, member and byte offset, for everything by which samples or members would be lost:
    no tar, a cut, a corrupt header, missing end blocks, data after the end, a key that comes back after another one
    (among those read), a member twice, without key or extension, or in a pickle format. Folders, links and hidden
    files are left out. Asks for the shard once.
    """
    for item in read_items(address, raising(address), offset=offset, index=index, options=options):
        if isinstance(item, TarSample):
            yield item


def read_items(
    address: str, on_fault: OnFault, *, offset: int = 0, index: int = 0, options: Storage = DEFAULT
) -> Generator[Item, None, None]:
    """The same, with faults told to ``on_fault``: if that returns, samples that are lost come between the others."""
    with storage.open_stream(address, offset, options) as stream:
        tape = Tape(storage.log_name(address), stream, offset)
        yield from Grouping(tape, index, on_fault).items(walk(tape))


def read_sample(address: str, *, offset: int, index: int, options: Storage = DEFAULT) -> TarSample:
    """Read again the one sample that starts at byte ``offset``, and no further than to the header after it.

    Raises ShardError where no sample starts there.
    """
    with storage.open_stream(address, offset, options) as stream:
        tape = Tape(storage.log_name(address), stream, offset)
        samples = Grouping(tape, index, raising(address)).items(walk(tape, to_end=False))
        with closing(samples):
            sample = next(samples, None)
    if not isinstance(sample, TarSample) or sample.offset != offset:
        fault = Fault("damaged_tar", offset, f"no sample starts here (sample {index})", "the shard was changed since")
        raise ShardError(fault.text(tape.name))
    return sample


def raising(address: str) -> OnFault:
    """Turns every fault of a shard into a ShardError."""
    name = storage.log_name(address)

    def refuse(fault: Fault) -> Drop:
        raise ShardError(fault.text(name))

    return refuse
