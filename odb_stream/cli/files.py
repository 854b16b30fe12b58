"""Files that a command is to write at its end: checked at the start, before a long run."""

import os
from pathlib import Path

from odb_stream.errors import ConfigError


def require_writable(option: str, path: Path | None) -> None:
    """Raise ConfigError where the file that ``option`` names could not be written."""
    if path is None:
        return
    folder = path.absolute().parent
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder: give the path of a file")
    if not folder.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {folder}; make it first")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"{option} {path}: the folder {folder} is not writable")
