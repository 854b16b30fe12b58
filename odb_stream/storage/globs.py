"""Globs over the names in an object store, by the rules of the standard library's ``glob`` on folders.

``*``, ``?`` and ``[..]`` match within one part of a path, ``**`` as a whole part matches any folders, and names that
begin with a dot match only patterns that begin with one.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence

Lister = Callable[[str], tuple[list[str], list[str]]]
"""Folder -> the paths of the folders and of the files in it."""
Walker = Callable[[str], Iterable[str]]
"""Folder -> the paths of all files under it, however deep."""

RECURSIVE = "**"
_MAGIC = re.compile(r"[*?[]")


def has_magic(pattern: str) -> bool:
    """Whether there is a wildcard."""
    return _MAGIC.search(pattern) is not None


def matches(pattern: str, listed: Lister, walked: Walker) -> list[str]:
    """The paths of all files that match the pattern; only folders that can hold one are listed."""
    parts = pattern.split("/")
    fixed = next((place for place, part in enumerate(parts[:-1]) if has_magic(part)), len(parts) - 1)
    top = "/".join(parts[:fixed])
    if RECURSIVE in parts:
        return [path for path in walked(top) if _fits(path.split("/")[fixed:], parts[fixed:])]
    folders = [top]
    for part in parts[fixed:-1]:
        folders = [inner for folder in folders for inner in _inside(folder, part, listed)]
    return [path for folder in folders for path in _fitting(listed(folder)[1], parts[-1])]


def _inside(folder: str, part: str, listed: Lister) -> list[str]:
    return _fitting(listed(folder)[0], part) if has_magic(part) else [f"{folder}/{part}"]


def _fitting(paths: list[str], part: str) -> list[str]:
    """The paths whose last part matches; a name that equals the pattern literally is the only match."""
    named = {path.rpartition("/")[2]: path for path in paths}
    return [named[part]] if part in named else [path for name, path in named.items() if _fits_part(name, part)]


def _fits_part(name: str, part: str) -> bool:
    return (part.startswith(".") or not name.startswith(".")) and fnmatch.fnmatchcase(name, part)


def _fits(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether a path matches a pattern with ``**``, both split at the slashes."""
    if not parts or not names:
        return not parts and not names
    if parts[0] != RECURSIVE:
        return _fits_part(names[0], parts[0]) and _fits(names[1:], parts[1:])
    if len(parts) == 1:
        return not any(name.startswith(".") for name in names)
    return _fits(names, parts[1:]) or (not names[0].startswith(".") and _fits(names[1:], parts))
