"""Names that moved: the old name still works, and a DeprecationWarning gives the new one."""

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def moved(old: str, new: str) -> Callable[[str], Any]:
    """A module's ``__getattr__`` for a module ``old`` whose names are all found in module ``new``.

    Each use is a DeprecationWarning that names the new place.
    """

    def get(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        value = getattr(import_module(new), name)
        warnings.warn(f"{old}.{name} is now {new}.{name}", DeprecationWarning, stacklevel=2)
        return value

    return get


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's ``__getattr__`` for names of this ``module`` that are now called otherwise, from old to new.

    Each use is a DeprecationWarning that names the new one.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is now {module}.{names[name]}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(module), names[name])

    return get
