"""Tar headers: from 512-byte blocks to the entries of an archive, with the names of PAX and GNU extended headers."""

import tarfile
from typing import NamedTuple

from odb_stream.config import MEBIBYTE
from odb_stream.shards.tar.byte_cursor import ByteCursor
from odb_stream.shards.tar.faults import Fault

BLOCK = tarfile.BLOCKSIZE

_LONG_NAME, _LONG_LINK, _PAX, _PAX_OF_ALL, _PAX_OF_SUN = b"L", b"K", b"x", b"g", b"X"
_EXTENDED = frozenset({_LONG_NAME, _LONG_LINK, _PAX, _PAX_OF_ALL, _PAX_OF_SUN})
_FILES = frozenset({tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE})
_WITHOUT_DATA = frozenset(
    {tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE}
)
_MAGIC = slice(257, 262)
# A longer one is a damaged size: names and records take some hundred bytes.
_LONGEST_EXTENDED = MEBIBYTE


class Entry(NamedTuple):
    """One entry of an archive, whose header was read and whose data were not.

    ``offset`` is the byte of its first header (an extended header counts), ``end`` the byte after its padded data.
    ``extended`` means that the name comes from an extended header, which no checksum covers. ``doubtful`` marks the
    first entry after damage if it may have lost such a header, so that its name may be wrong.
    """

    name: str
    kind: bytes
    offset: int
    size: int
    end: int
    extended: bool = False
    doubtful: bool = False

    @property
    def regular(self) -> bool:
        """Whether it is a file, not a folder, a link, a device or a note of the archive's own."""
        return self.kind in _FILES

    @property
    def link(self) -> bool:
        """Whether it is a link to another file."""
        return self.kind in (tarfile.SYMTYPE, tarfile.LNKTYPE)


class _Named(NamedTuple):
    """What extended headers say about the entry after them."""

    name: str | None = None
    size: int | None = None


def read_entry(cursor: ByteCursor, block: bytes) -> Entry | Fault:
    """The entry whose first header block was just read from the cursor."""
    offset = cursor.at - len(block)
    named = _Named()
    corrupt: Fault | None = None
    while True:
        info = _parsed(block)
        if info is None:
            what = "the tar is cut in a header" if len(block) < BLOCK else "a tar header is corrupt"
            return corrupt or Fault("damaged_tar", offset, what)
        if info.type not in _EXTENDED:
            break
        text = cursor.read(_padded(info.size)) if info.size <= _LONGEST_EXTENDED else b""
        if len(text) < info.size:
            return Fault("damaged_tar", offset, "the tar is cut in an extended header, or that header is corrupt")
        try:
            named = _extended(info.type, text[: info.size], named)
        except ValueError as error:
            corrupt = Fault("damaged_tar", offset, f"an extended header is corrupt ({error})")
        block = cursor.read(BLOCK)
    size = info.size if named.size is None else named.size
    if info.size not in (0, size):
        corrupt = corrupt or Fault("damaged_tar", offset, f"two headers of {info.name!r} give it different sizes")
    end = cursor.at + (0 if info.type in _WITHOUT_DATA else _padded(size))
    name = info.name if named.name is None else named.name
    if info.type == tarfile.GNUTYPE_SPARSE:
        what = f"member {name!r} is a sparse file, which is not read"
        corrupt = Fault("refused_member", offset, what, "write it without --sparse")
    if corrupt is not None:
        # Its own name and size may be wrong, so the entry counts as part of the damage.
        cursor.advance(end)
        return corrupt
    return Entry(name.removeprefix("./"), info.type, offset, size, end, named.name is not None)


def is_header(block: bytes) -> bool:
    """Whether a block is a tar header: its checksum is right."""
    return _parsed(block) is not None


def find_header(cursor: ByteCursor, block: bytes, before: bytes | None = None) -> tuple[bytes, bool]:
    """From this block on, the next one that is a tar header; empty at the end.

    ``before`` is the block before it, unless the damage begins with this block. The flag says whether the header may
    have lost an extended header. A tar file within a tar file is entered: its headers look like the shard's own.
    """
    while len(block) == BLOCK:
        if block[_MAGIC] == b"ustar" and is_header(block):
            return block, _may_lack_a_name(block, before)
        before = block
        block = cursor.read(BLOCK)
    return b"", False


def _may_lack_a_name(block: bytes, before: bytes | None) -> bool:
    """Whether the block before a header may be the text of its extended header, whose own block was destroyed.

    Such a text is a name too long for the header, which is full then, or lines that end with a newline.
    """
    if before is None:
        return False
    text = before.rstrip(b"\0")
    return not text or text.endswith(b"\n") or len(block[:100].rstrip(b"\0")) >= 99


def _parsed(block: bytes) -> tarfile.TarInfo | None:
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return None
    return info if info.size >= 0 else None


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _extended(kind: bytes, text: bytes, named: _Named) -> _Named:
    """What an extended header adds. Raises ValueError if it makes no sense."""
    if kind == _LONG_NAME:
        name = text.partition(b"\0")[0]
        if not name:
            raise ValueError("an empty name")
        return named._replace(name=_decoded(name))
    if kind in (_PAX, _PAX_OF_SUN):
        records = _pax_records(text)
        if any(keyword.startswith(b"GNU.sparse.") for keyword in records):
            raise ValueError("a sparse file; write it without --sparse")
        if name := records.get(b"path", b""):
            named = named._replace(name=_decoded(name))
        if b"size" in records:
            named = named._replace(size=_whole_number(records[b"size"]))
    # A global header holds for all entries after it. Reading that begins behind it cannot know it, so it is ignored
    # everywhere: a sample must not depend on where reading began.
    return named


def _pax_records(text: bytes) -> dict[bytes, bytes]:
    """The records of a PAX header, each ``LENGTH KEYWORD=VALUE`` and a newline. Raises ValueError."""
    records = {}
    while text:
        digits = text[:12].partition(b" ")[0]
        length = _whole_number(digits)
        record, text = text[:length], text[length:]
        keyword, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if len(record) < length or not record.endswith(b"\n") or not equals:
            raise ValueError("not a record")
        records[keyword] = value
    return records


def _whole_number(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 18:
        raise ValueError(f"{digits[:18]!r} instead of a length")
    return int(digits)


def _decoded(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
