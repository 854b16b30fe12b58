"""Loads recipes: Python files or modules with a function ``build(...) -> odb.Pipeline``, by path or by name."""

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from odb_stream.errors import ConfigError, OdbStreamError

if TYPE_CHECKING:
    from odb_stream.sources.pipeline import Pipeline

CONTRACT = "a recipe is a Python file or module with a function build(...) -> odb_stream.Pipeline"


def build_pipeline(recipe: str, shards: str | None = None) -> "Pipeline":
    """The pipeline that a recipe builds.

    Args:
        recipe: path of a ``.py`` file, or dotted name of a module.
        shards: passed to ``build`` as its parameter ``shards``; None leaves the recipe's own default.

    Raises:
        ConfigError: there is no such recipe, it cannot be imported or has no ``build``, or its ``build`` cannot be
            called, fails, or returns something else; the message names the recipe and the way out.
    """
    from odb_stream.sources.pipeline import Pipeline

    build = getattr(_load_module(recipe), "build", None)
    if not callable(build):
        raise ConfigError(f"recipe {recipe} has no function build: {CONTRACT}")
    arguments = {} if shards is None else {"shards": shards}
    _check_arguments(recipe, build, arguments)
    try:
        pipeline = build(**arguments)
    except OdbStreamError:
        raise
    except Exception as error:  # the recipe is the user's code and may raise anything
        raise ConfigError(f"recipe {recipe}: build() raised {_in_words(error)}") from error
    if not isinstance(pipeline, Pipeline):
        raise ConfigError(f"recipe {recipe}: build() returned {pipeline!r}, not an odb_stream.Pipeline; {CONTRACT}")
    return pipeline


def _load_module(recipe: str) -> ModuleType:
    """Import a recipe like any other module, so that its stages can be sent to worker processes by name.

    A file is imported under its own name with its folder first on the import path, as ``python FILE`` puts it there. A
    dotted name is also looked up in the current folder. Workers inherit the import path.
    """
    if recipe.endswith(".py") or os.sep in recipe:
        return _load_file(recipe, Path(recipe).resolve())
    if not all(part.isidentifier() for part in recipe.split(".")):
        raise ConfigError(f"recipe {recipe!r} is neither a path nor the dotted name of a module; {CONTRACT}")
    _put_on_path(os.getcwd())
    try:
        found = importlib.util.find_spec(recipe)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ConfigError(
            f"recipe {recipe}: no module of this name in {os.getcwd()} or among the installed packages; for a file, "
            f"give its path, such as ./{recipe}.py"
        )
    return _import(recipe, recipe)


def _load_file(recipe: str, path: Path) -> ModuleType:
    if not path.is_file() or path.suffix != ".py":
        problem = "is a folder" if path.is_dir() else "is not a .py file" if path.exists() else "does not exist"
        raise ConfigError(f"recipe {recipe} {problem}; {CONTRACT}: give its path, such as pipelines/text_chat.py")
    name = path.stem
    if "." in name:
        raise ConfigError(f"recipe {recipe}: the name of a module cannot contain a dot: rename the file")
    # Workers import by name, so the name must lead to this very file, also where it is imported already.
    known = sys.modules.get(name)
    if known is None:
        _put_on_path(str(path.parent))
        known = _import(recipe, name)
    place = getattr(known, "__file__", None)
    if place is None or Path(place).resolve() != path:
        raise ConfigError(
            f"recipe {recipe}: another module is named {name!r} ({place or 'built into Python'}), and workers would "
            "import that one: rename the file"
        )
    return known


def _put_on_path(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)
        importlib.invalidate_caches()  # a recipe written a moment ago may be missing from the cached listing


def _import(recipe: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except OdbStreamError:
        raise
    except (Exception, SystemExit) as error:  # the recipe is the user's code and may raise anything, or exit
        raise ConfigError(f"recipe {recipe} cannot be imported: {_in_words(error)}") from error


def _in_words(error: BaseException) -> str:
    """An error in the user's code, with the last line that ran."""
    words = f"{type(error).__name__}: {error}"
    if not isinstance(error, SyntaxError):  # its text says where, and the traceback ends in importlib
        last = traceback.extract_tb(error.__traceback__)[-1]
        words += f" ({last.filename}, line {last.lineno})"
    return f"{words}; `odb-stream --debug run ...` shows the traceback"


def _check_arguments(recipe: str, build: Callable[..., Any], arguments: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(build)
    except (TypeError, ValueError):
        return  # a built-in function has no signature: the call itself will show
    parameters = signature.parameters
    named = parameters.get("shards")
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if arguments and not takes_any and (named is None or named.kind is named.POSITIONAL_ONLY):
        raise ConfigError(
            f"recipe {recipe}: --shards was given, but build{signature} takes no parameter `shards`: add it to build, "
            "or leave --shards out"
        )
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"recipe {recipe}: build{signature} cannot be called without more arguments ({error}): give its "
            "parameters defaults"
        ) from error
