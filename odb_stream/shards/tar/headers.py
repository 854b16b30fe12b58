"""A tar archive block by block: its bytes in one pass, and its headers with PAX and GNU extended names as entries."""

import tarfile
from typing import BinaryIO, NamedTuple

from odb_stream.config import MEBIBYTE
from odb_stream.errors import ShardError
from odb_stream.shards.tar.faults import Fault

BLOCK = tarfile.BLOCKSIZE
MOST_AT_ONCE = 16 * MEBIBYTE
"""Bytes of one read: a damaged size must not ask for memory that the file cannot fill."""

_LONG_NAME, _LONG_LINK, _PAX, _PAX_OF_ALL, _PAX_OF_SUN = b"L", b"K", b"x", b"g", b"X"
_EXTENDED = frozenset({_LONG_NAME, _LONG_LINK, _PAX, _PAX_OF_ALL, _PAX_OF_SUN})
_FILES = frozenset({tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE})
_WITHOUT_DATA = frozenset(
    {tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE}
)
_MAGIC = slice(257, 262)
# A longer one is a damaged size: names and records take some hundred bytes.
_LONGEST_EXTENDED = MEBIBYTE


class ByteCursor:
    """Reads the bytes of a shard from byte ``start`` on; ``at`` is the offset of the next byte.

    ``name`` is the shard's address, fit for messages. At ``limit``, where there is one, reading ends as at the end of
    the file; :meth:`enter` moves on to another part.
    """

    def __init__(self, name: str, stream: BinaryIO, start: int) -> None:
        self.name = name
        self.start = start
        self.at = start
        self.limit: int | None = None
        self._stream = stream

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes; fewer only at the end. Raises ShardError where the file cannot be read."""
        if self.limit is not None:
            size = min(size, self.limit - self.at)
        parts: list[bytes] = []
        while size and (part := self._pull(min(size, MOST_AT_ONCE))):
            parts.append(part)
            size -= len(part)
        data = b"".join(parts)
        self.at += len(data)
        return data

    def advance(self, offset: int) -> bool:
        """Move forward to a byte offset; False where the end comes first."""
        while self.at < offset:
            if not self.read(min(offset - self.at, MEBIBYTE)):
                return False
        return True

    def enter(self, offset: int, limit: int | None) -> None:
        """Move forward to the part that begins at ``offset`` and ends at ``limit``, or at the end of the file."""
        self.limit = None
        self.advance(offset)
        self.start, self.limit = offset, limit

    def _pull(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except OSError as error:
            raise ShardError(
                f"{self.name}, byte offset {self.at}: cannot be read ({error.strerror or error}); "
                "check the disk or the connection and start again"
            ) from error


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
