"""Names of members: from a file name to a key and an extension, by webdataset's rule, and which names are refused."""

import functools
import importlib
import re
from types import ModuleType
from typing import NamedTuple

from odb_stream.shards.tar.faults import Fault
from odb_stream.shards.tar.headers import Entry

PICKLES = frozenset({"pkl", "pickle", "pyd", "pth", "pt"})
"""Extensions of formats that run code when they are loaded: refused."""
# A hidden file is left out, unless its extension says that it is a member without a key: that would lose data silently.
_PAYLOADS = frozenset({"json", "txt", "jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"})
_METADATA = re.compile(r"__[^/]*__($|/)")
# Bytes that are not UTF-8 become lone surrogates when a header is decoded.
_NOT_UTF8 = re.compile(r"[\ud800-\udfff]")


class Member(NamedTuple):
    """The sample that a file belongs to, and its extension there; ``fault`` says why it cannot be read."""

    key: str
    extension: str
    fault: Fault | None = None


@functools.cache
def _webdataset() -> ModuleType:
    # Loaded on first use: webdataset imports torch, which a worker process that only names this package must not load.
    return importlib.import_module("webdataset.tariterators")


def split_name(name: str) -> tuple[str, str] | None:
    """Key and lower-cased extension of a member's name by webdataset's rule; None unless it has both."""
    key, extension = _webdataset().base_plus_ext(name)
    # For "folder/.json" the rule gives the key "folder/", which is a folder and not a key.
    return (key, extension.lower()) if key and extension and not key.endswith("/") else None


def is_left_out(name: str) -> bool:
    """Whether a file is not a member by its name: ``__meta__`` files and hidden files, as in webdataset."""
    if _METADATA.match(name):
        return True
    base = name.rpartition("/")[2]
    if not base.startswith("."):
        return False
    return base.startswith("._") or base.rpartition(".")[2].lower() not in _PAYLOADS


def member_of(entry: Entry) -> Member | Fault | None:
    """A file of a shard as a member; None if it is left out, a fault if its sample cannot be determined."""
    name = entry.name
    if is_left_out(name):
        return None
    if not name.isascii() and _NOT_UTF8.search(name):
        return Fault("bad_name", entry.offset, f"the name of member {name!r} is not UTF-8", "name files in UTF-8")
    parts = split_name(name)
    if parts is None:
        return Fault("bad_name", entry.offset, f"member {name!r} has no key or no extension", "name it KEY.EXT")
    key, extension = parts
    place = f"member {name!r} of key {key!r}"
    fault = None
    if extension.rpartition(".")[2] in PICKLES:
        way_out = "store json, txt or images"
        fault = Fault("refused_member", entry.offset, f"{place} is a pickle, which may run code", way_out)
    elif extension.startswith("__"):
        fault = Fault("bad_name", entry.offset, f"{place} has a reserved extension", "rename it")
    return Member(key, extension, fault)
