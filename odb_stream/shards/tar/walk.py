"""A walk over a tar archive from end to end: its files in order, every fault in its structure, and the way past it."""

import logging
from collections.abc import Generator

from odb_stream.shards.tar.faults import REPAIR, Fault
from odb_stream.shards.tar.headers import BLOCK, ByteCursor, Entry, find_header, is_header, read_entry

_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}

logger = logging.getLogger(__name__)


def walk(cursor: ByteCursor, *, to_end: bool = True) -> Generator[Entry | Fault, None, None]:
    """The files of an archive and its faults, in order; folders are left out, links are logged and left out.

    Read the data of a file from the cursor before asking for the next item. After a fault the walk continues at the
    next tar header that it can find. Without ``to_end`` it ends at the first empty block, without checking that the
    archive ends properly; with a limit on the cursor it may also end at the limit.
    """
    block, doubtful = cursor.read(BLOCK), False
    while True:
        if not block.strip(b"\0"):
            if (block and not to_end) or (not block and cursor.at == cursor.limit):
                return
            fault, block, doubtful = _at_empty_block(cursor, block)
            if fault is not None:
                yield fault
            if not block:
                return
        item = read_entry(cursor, block)
        if isinstance(item, Fault):
            yield _first_fault(cursor, block, item) if item.offset == cursor.start and not is_header(block) else item
            if item.offset == 0 and _compression(block):
                # A search through compressed bytes would read the whole file and find nothing.
                return
            block, doubtful = find_header(cursor, cursor.read(BLOCK))
            if not block:
                return
            continue
        if item.regular:
            yield item._replace(doubtful=doubtful) if doubtful else item
            doubtful = False
        elif item.link:
            logger.warning(
                "%s, byte offset %d: member %r is a link and is left out; write the file itself into the shard",
                cursor.name,
                item.offset,
                item.name,
            )
        if not cursor.advance(item.end):
            yield Fault("damaged_tar", item.offset, f"the data of member {item.name!r} is cut")
            return
        block = cursor.read(BLOCK)


def _at_empty_block(cursor: ByteCursor, block: bytes) -> tuple[Fault | None, bytes, bool]:
    """What is wrong with an archive that ends here, and the next header after it, if any, as from ``find_header``.

    A proper end is two blocks of zeros, and nothing but zeros after them.
    """
    offset = cursor.at - len(block)
    if not block and offset == cursor.start == 0:
        return Fault("unreadable_shard", 0, "the file is empty"), b"", False
    empty = 0
    while block and not block.strip(b"\0"):
        empty += len(block)
        before = block
        block = cursor.read(BLOCK)
    if block:
        way_out = "write one tar of the parts (tars cannot be joined by cat), or the shard again"
        fault = Fault("damaged_tar", offset, "data follows the first end block of the tar", way_out)
        return fault, *find_header(cursor, block, before if empty > BLOCK else None)
    if empty >= 2 * BLOCK or cursor.at == cursor.limit:
        return None, b"", False
    way_out = "it was cut, or its writer did not finish: copy or write the shard again"
    # After the first end block no member can be missing.
    complete = empty >= BLOCK
    return Fault("damaged_tar", offset, "the tar lacks its two end blocks", way_out, complete), b"", False


def _first_fault(cursor: ByteCursor, block: bytes, fault: Fault) -> Fault:
    """The fault of a block that is not a header where reading begins, in words that fit the place."""
    if cursor.start:
        way_out = f"{fault.way_out}, or its index if it was changed"
        return fault._replace(what="no tar header here", way_out=way_out)
    if name := _compression(block):
        way_out = "store plain tar files, which can be entered anywhere"
        return Fault("unreadable_shard", 0, f"the file is compressed ({name})", way_out)
    way_out = f"give tar files in the WebDataset layout; if it was one, {REPAIR}"
    return fault._replace(what="not a tar file, or its first header is damaged", way_out=way_out)


def _compression(block: bytes) -> str | None:
    return next((name for magic, name in _COMPRESSED.items() if block.startswith(magic)), None)
