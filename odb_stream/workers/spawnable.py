"""What must hold before worker processes can start: a main module they can import, a pipeline that pickles."""

import io
import multiprocessing
import os
import pickle
import sys
from types import FunctionType
from typing import Any

from odb_stream.errors import ConfigError
from odb_stream.prepare.records import Prepare, stage_name
from odb_stream.workers.process import PROTOCOL

INLINE = "or use workers=0, which prepares in this process"


def pickle_for_workers(prepare: Prepare) -> bytes:
    """Pickle a pipeline for worker processes.

    Raises ConfigError if the workers could not start or could not rebuild it: in a daemonic process, without an
    importable main module, or with a stage that does not pickle. Checked here, because in the workers each of these
    would end in a traceback that says nothing of the cause.
    """
    if multiprocessing.current_process().daemon:
        raise ConfigError(
            "workers > 0 in a daemonic process (such as a DataLoader's worker), which may not start processes: build "
            f"the Loader in the main process, {INLINE}."
        )
    main_file = getattr(sys.modules["__main__"], "__file__", None)
    if not _main_has_name() and main_file is not None and not os.path.isfile(main_file):
        raise ConfigError(
            f"workers > 0, but the main module is not importable: {main_file!r} is not a file (a script from "
            f"standard input?), and worker processes import the main module. Save the script as a file, {INLINE}."
        )
    try:
        pipeline, defined_in_main = _pickle(prepare)
    except Exception as error:  # a stage's own pickling methods run here and may raise anything
        raise ConfigError(
            f"{_culprit(prepare)} cannot be sent to worker processes: {type(error).__name__}: {error}. Stages must "
            f"pickle: use a function or class from the top level of a module (no lambda, no closure), {INLINE}."
        ) from error
    if defined_in_main and not (_main_has_name() or main_file):
        raise ConfigError(
            f"workers > 0, but the main module is not importable: {', '.join(defined_in_main)} is defined in a "
            f"notebook or an interactive session, where worker processes cannot find it. Move it to a .py file and "
            f"import it from there, {INLINE}."
        )
    return pipeline


def _main_has_name() -> bool:
    """Whether the main module was started by name (``python -m``): workers then import it by that name."""
    return getattr(sys.modules["__main__"], "__spec__", None) is not None


def _culprit(prepare: Prepare) -> str:
    """The part of a pipeline that does not pickle, in words."""
    for source in prepare.sources:
        parts: list[tuple[str, object]] = [(f"the source's {stage_name(source.opener)}", source.opener)]
        parts += [
            (f"stage {number} ({stage_name(stage)})", stage) for number, stage in enumerate(source.stages, start=1)
        ]
        for words, part in parts:
            try:
                _pickle(part)
            except Exception:  # noqa: BLE001 - as above; the caller reports the error itself
                return words
    return "the pipeline"


def _pickle(value: object) -> tuple[bytes, list[str]]:
    """Pickle a value; also return the names of the main module's functions and classes that it refers to."""
    target = io.BytesIO()
    pickler = _NotingPickler(target, PROTOCOL)
    pickler.dump(value)
    return target.getvalue(), pickler.defined_in_main


class _NotingPickler(pickle.Pickler):
    """Pickles as usual and records which functions and classes belong to the main module."""

    def __init__(self, target: io.BytesIO, protocol: int) -> None:
        super().__init__(target, protocol)
        self.defined_in_main: list[str] = []

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            self.defined_in_main.append(value.__qualname__)
        return NotImplemented
