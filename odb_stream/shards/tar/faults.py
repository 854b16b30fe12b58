"""What can be wrong with a shard: the reasons under which losses are counted, and a fault with its byte offset."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from odb_stream.sample import Drop

Reason = Literal[
    "damaged_tar",  # the tar is cut, a header is corrupt, data follow the end, or end blocks are missing
    "unreadable_shard",  # nothing can be read: the file is empty, compressed, or a tar without samples
    "checksum",  # a sample differs from what its index says
    "repeated_key",  # a key comes back after other keys
    "repeated_member",  # two members give the same extension or the same field
    "bad_name",  # a member without key or extension, with a reserved extension, or with a name that is not UTF-8
    "refused_member",  # a pickle or a sparse file
    "bad_json",  # the json member does not parse, or is not an object
    "not_utf8",  # the json or txt member is not UTF-8
    "no_text",  # a sample with neither json nor txt
]

REPAIR = "copy or write the shard again"


class Fault(NamedTuple):
    """One thing that is wrong at a byte offset of a shard, and the way out.

    ``complete`` means that all members were read nevertheless, so no sample is lost.
    """

    reason: Reason
    offset: int
    what: str
    way_out: str = REPAIR
    complete: bool = False

    def text(self, shard: str) -> str:
        """The fault as a message about a shard."""
        return f"{shard}, byte offset {self.offset}: {self.what}; {self.way_out}"

    def drop(self, shard: str) -> Drop:
        """The fault as the drop of a sample that it costs."""
        return damaged(self.reason, self.text(shard))


OnFault = Callable[[Fault], Drop]
"""What a fault means: it is raised as an error, or returned as the drop of the samples that it costs."""


def damaged(reason: Reason, detail: str) -> Drop:
    """The drop of a sample whose data are broken."""
    return Drop(reason, detail, damaged=True)
