"""Recipes: a python file or module with a function ``build(...) -> odb.Pipeline``, loaded by path or by name."""

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odb_stream.errors import ConfigError, OdbStreamError

if TYPE_CHECKING:
    from odb_stream.sources.pipeline import Pipeline

Recipe = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A .py file or module with build(...) -> odb_stream.Pipeline.")
]
ShardsOption = Annotated[
    str | None, typer.Option(metavar="URLS", help="Brace range or glob, given to the recipe as build(shards=URLS).")
]

CONTRACT = "a recipe is a python file or module with a function build(...) -> odb_stream.Pipeline"


def build_pipeline(recipe: str, shards: str | None = None) -> "Pipeline":
    """The pipeline that a recipe builds.

    Args:
        recipe: path of a ``.py`` file, or dotted name of a module.
        shards: given to ``build`` as its parameter ``shards``; None leaves the recipe's own.

    Raises:
        ConfigError: no such recipe, it fails on import, has no ``build``, its ``build`` cannot be called so, fails, or
            returns something else; the message names the recipe and the way out.
    """
    from odb_stream.sources.pipeline import Pipeline

    build = build_function(recipe)
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


def build_function(recipe: str) -> Callable[..., Any]:
    """The function ``build`` of a recipe; see :func:`build_pipeline` for the errors."""
    module = load_module(recipe)
    build = getattr(module, "build", None)
    if not callable(build):
        raise ConfigError(f"recipe {recipe} has no function build: {CONTRACT}")
    function: Callable[..., Any] = build
    return function


def load_module(recipe: str) -> ModuleType:
    """Import a recipe as any other module, so that its stages can be sent to worker processes by their names.

    A file is imported under its own name with its folder first on the import path, which is what ``python FILE`` does
    with the folder; a dotted name is looked up in the current folder, too. Workers inherit the import path.
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
            f"recipe {recipe}: no module of this name in {os.getcwd()} or among the installed packages; for a file "
            f"write its path, such as ./{recipe}.py"
        )
    return _import(recipe, recipe)


def _load_file(recipe: str, path: Path) -> ModuleType:
    if not path.is_file() or path.suffix != ".py":
        problem = "is a folder" if path.is_dir() else "is no .py file" if path.exists() else "does not exist"
        raise ConfigError(f"recipe {recipe} {problem}; {CONTRACT}: give its path, such as pipelines/text_chat.py")
    name = path.stem
    if "." in name:
        raise ConfigError(f"recipe {recipe}: a module's name holds no dot, and workers import it by name: rename it")
    known = sys.modules.get(name)
    if known is None:
        _put_on_path(str(path.parent))
        known = _import(recipe, name)
    place = getattr(known, "__file__", None)
    if place is None or Path(place).resolve() != path:
        raise ConfigError(
            f"recipe {recipe}: another module is called {name!r} ({place or 'built into Python'}), and workers would "
            "import that one: rename the file"
        )
    return known


def _put_on_path(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)
        importlib.invalidate_caches()


def _import(recipe: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except OdbStreamError:
        raise
    except (Exception, SystemExit) as error:  # the recipe is the user's code and may raise anything, or exit
        raise ConfigError(f"recipe {recipe} cannot be imported: {_in_words(error)}") from error


def _in_words(error: BaseException) -> str:
    """An error of the user's code with the place of the last line that ran."""
    words = f"{type(error).__name__}: {error}"
    if not isinstance(error, SyntaxError):  # whose text says where
        last = traceback.extract_tb(error.__traceback__)[-1]
        words += f" ({last.filename}, line {last.lineno})"
    return f"{words}; `odb-stream --debug run ...` shows the traceback"


def _check_arguments(recipe: str, build: Callable[..., Any], arguments: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(build)
    except (TypeError, ValueError):
        return  # built in: calling it will tell
    parameters = signature.parameters
    named = parameters.get("shards")
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if arguments and not takes_any and (named is None or named.kind is named.POSITIONAL_ONLY):
        raise ConfigError(
            f"recipe {recipe}: --shards was given, but build{signature} takes no parameter `shards`: add one to build, "
            "or leave --shards out"
        )
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"recipe {recipe}: build{signature} cannot be called without more arguments ({error}): give its parameters "
            "defaults"
        ) from error
